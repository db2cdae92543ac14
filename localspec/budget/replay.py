"""Replay ggml's graph allocator over a list of tensors, to know the size of a compute buffer.

llama.cpp reserves its worst-case graph once; the buffer's size follows from which tensors live at the same
time and where a best-fit allocator puts them (ggml-alloc.c: `ggml_gallocr_alloc_graph_impl`,
`ggml_dyn_tallocr_alloc`) and from which tensors are copied between devices (ggml-backend.cpp:
`ggml_backend_sched_split_graph`). Knows sizes and order of tensors only, nothing of models.
"""

from __future__ import annotations

from dataclasses import dataclass, field

HOST = 0
"""Device number of host memory; accelerators count from 1 and come first in priority."""


@dataclass(slots=True)
class Graph:
    """Tensors in the order in which ggml would compute them, each on a device.

    Handles are plain numbers. A view is its source: reading a view of a tensor is reading the tensor.
    """

    sizes: list[int] = field(default_factory=list)
    devices: list[int] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    sources: list[tuple[int, ...]] = field(default_factory=list)
    inplace: list[bool] = field(default_factory=list)
    leaves: list[int] = field(default_factory=list)
    """Inputs, in order of first use: allocated before anything else."""
    external: set[int] = field(default_factory=set)
    """Weights and caches, which have buffers of their own."""
    own: set[int] = field(default_factory=set)
    """Those of `external` that belong to this context."""
    kept: set[int] = field(default_factory=set)
    """Outputs, never freed."""
    order: list[int] = field(default_factory=list)
    copies: int = 1
    """Of inputs and of what is copied between devices; with more than one they stay for good."""
    device: int = HOST
    """Where the next operation runs."""

    def _add(self, size: int, device: int, label: str, sources: tuple[int, ...], inplace: bool) -> int:
        self.sizes.append(size)
        self.devices.append(device)
        self.labels.append(label)
        self.sources.append(sources)
        self.inplace.append(inplace)
        return len(self.sizes) - 1

    def leaf(self, size: int, label: str) -> int:
        """An input in host memory."""
        node = self._add(size, HOST, label, (), False)
        self.leaves.append(node)
        return node

    def buffer(self, size: int, label: str, device: int, *, own: bool = True) -> int:
        """A weight or cache with memory of its own; read on another device it is copied there.

        Args:
            own: False for another context's cache, whose copies all live as long as what reads them.
        """
        node = self._add(size, device, label, (), False)
        self.external.add(node)
        if own:
            self.own.add(node)
        return node

    def op(
        self, size: int, label: str, *sources: int, inplace: bool = False, device: int | None = None
    ) -> int:
        """A tensor of `size` bytes computed from `sources`.

        Args:
            inplace: ggml may write it over a source of the same size that nobody else reads.
        """
        node = self._add(size, self.device if device is None else device, label, sources, inplace)
        self.order.append(node)
        return node

    def sink(self, label: str, *sources: int, device: int | None = None) -> None:
        """An operation that writes into memory of its own (a cache): takes no space here."""
        node = self.op(0, label, *sources, device=device)
        self.external.add(node)


@dataclass(slots=True)
class Pool:
    """One device's address range: a sorted list of free blocks, the last one endless."""

    alignment: int
    free: list[list[int]] = field(default_factory=lambda: [[0, 1 << 62]])
    peak: int = 0

    def take(self, size: int) -> int:
        """Best fit among the inner free blocks, else the end."""
        size = (size + self.alignment - 1) // self.alignment * self.alignment
        best, best_size = len(self.free) - 1, 1 << 63
        for index in range(len(self.free) - 1):
            block_size = self.free[index][1]
            if size <= block_size <= best_size:
                best, best_size = index, block_size
        block = self.free[best]
        offset = block[0]
        block[0] += size
        block[1] -= size
        if block[1] == 0:
            del self.free[best]
        self.peak = max(self.peak, offset + size)
        return offset

    def give(self, offset: int, size: int) -> None:
        size = (size + self.alignment - 1) // self.alignment * self.alignment
        free = self.free
        index = 0
        while index < len(free) and free[index][0] < offset:
            index += 1
        if index and free[index - 1][0] + free[index - 1][1] == offset:
            free[index - 1][1] += size
            index -= 1
        else:
            free.insert(index, [offset, size])
        if index + 1 < len(free) and free[index][0] + free[index][1] == free[index + 1][0]:
            free[index][1] += free[index + 1][1]
            del free[index + 1]


def _split(graph: Graph) -> list[tuple[int, tuple[int, ...]]]:
    """Order with copies between devices: (node, its sources after copying) for each.

    A split is a run of operations on one device. What it reads from another device is copied when the
    split starts; a copy lives on for later splits. A weight that must be copied opens a new split, so
    that the space of earlier copies can be used again.
    """
    plan: list[tuple[int, tuple[int, ...]]] = []
    copies: dict[tuple[int, int], int] = {}
    current, start, n_inputs = -1, 0, 0
    devices, sources = graph.devices, graph.sources
    for node in graph.order:
        device = devices[node]
        foreign = [s for s in sources[node] if devices[s] != device]
        weight = any(s in graph.own and (s, device) not in copies for s in foreign)
        if device != current or (weight and n_inputs):
            current, start, n_inputs = device, len(plan), 0
        if foreign:
            for source in foreign:
                if (source, device) not in copies:
                    copy = graph._add(
                        graph.sizes[source], device, graph.labels[source] + " copy", (source,), False
                    )
                    copies[source, device] = copy
                    # the original is read once, when the split starts
                    plan.insert(start, (copy, (source,)))
                    start += 1
                    n_inputs += 1
            plan.append(
                (
                    node,
                    tuple(copies.get((s, device), s) if devices[s] != device else s for s in sources[node]),
                )
            )
        else:
            plan.append((node, sources[node]))
    return plan


@dataclass(frozen=True, slots=True)
class Reserved:
    """Result of a replay."""

    peaks: tuple[int, ...]
    """Bytes of the compute buffer per device number."""
    largest: tuple[tuple[tuple[str, int], ...], ...]
    """Per device, with `detail`: the tensors alive when the buffer was fullest, largest first."""


class _Allocator:
    """State of a replay: where every tensor is, and how many readers it still has."""

    def __init__(self, graph: Graph, alignments: tuple[int, ...], detail: bool) -> None:
        self.graph = graph
        self.first_copy = len(graph.sizes)
        self.plan = _split(graph)
        self.pools = [Pool(alignment) for alignment in alignments]
        self.readers = [0] * len(graph.sizes)
        for _, read in self.plan:
            for source in read:
                self.readers[source] += 1
        self.offsets = [-1] * len(graph.sizes)
        self.detail = detail
        self.live: list[dict[int, int]] = [{} for _ in alignments]
        self.fullest: list[dict[int, int]] = [{} for _ in alignments]

    def run(self) -> None:
        graph = self.graph
        for leaf in graph.leaves:
            self._place(leaf)
        if graph.copies > 1:
            self._multiply()
        for node, read in self.plan:
            if node not in graph.external and graph.sizes[node] and self.offsets[node] < 0:
                reused = self._overwritable(node, read) if graph.inplace[node] else -1
                if reused >= 0:
                    self._take_over(node, reused)
                else:
                    self._place(node)
            for source in read:
                self._done_with(source)

    def _multiply(self) -> None:
        """Room for every batch in the pipeline: inputs and copies between devices come first and stay."""
        graph = self.graph
        copies = [node for node, _ in self.plan if node >= self.first_copy]
        for node in copies:
            self._place(node)
        for node in (*graph.leaves, *copies):
            graph.kept.add(node)
            for _ in range(graph.copies - 1):
                self.pools[graph.devices[node]].take(graph.sizes[node])

    def _overwritable(self, node: int, read: tuple[int, ...]) -> int:
        """A source that `node` may be written over: same size and device, no other reader, no output."""
        graph = self.graph
        for source in read:
            if (
                self.readers[source] == 1
                and self.offsets[source] >= 0
                and graph.sizes[source] == graph.sizes[node]
                and source not in graph.kept
                and graph.devices[source] == graph.devices[node]
            ):
                return source
        return -1

    def _place(self, node: int) -> None:
        device, size = self.graph.devices[node], self.graph.sizes[node]
        pool = self.pools[device]
        before = pool.peak
        self.offsets[node] = pool.take(size)
        if self.detail:
            self.live[device][node] = size
            if pool.peak > before:
                self.fullest[device] = dict(self.live[device])

    def _take_over(self, node: int, reused: int) -> None:
        self.offsets[node], self.offsets[reused] = self.offsets[reused], -1
        if self.detail:
            alive = self.live[self.graph.devices[node]]
            alive.pop(reused, None)
            alive[node] = self.graph.sizes[node]

    def _done_with(self, source: int) -> None:
        self.readers[source] -= 1
        if self.readers[source] or self.offsets[source] < 0 or source in self.graph.kept:
            return
        device = self.graph.devices[source]
        self.pools[device].give(self.offsets[source], self.graph.sizes[source])
        self.offsets[source] = -1
        if self.detail:
            self.live[device].pop(source, None)


def replay(graph: Graph, alignments: tuple[int, ...], *, detail: bool = False) -> Reserved:
    """Allocate the graph as ggml does.

    Args:
        alignments: buffer alignment in bytes per device number.
        detail: also tell which tensors fill the buffers.
    """
    allocator = _Allocator(graph, alignments, detail)
    allocator.run()
    largest = tuple(
        tuple(sorted(((graph.labels[n], size) for n, size in alive.items()), key=lambda item: -item[1])[:6])
        for alive in allocator.fullest
    )
    return Reserved(tuple(pool.peak for pool in allocator.pools), largest)
