"""Primitives from which `graph` and `heads` build compute graphs: products, norms, inputs, caches, masks."""

from __future__ import annotations

from dataclasses import dataclass, field

from localspec.budget.placement import Placement
from localspec.budget.replay import HOST, Graph
from localspec.budget.shape import Build, ContextShape, row_bytes
from localspec.header.catalogue_facts import dense_elements
from localspec.header.facts import Layer, ModelFacts

F32, F16, I32, I64 = 4, 2, 4, 8
OFFLOAD_ROWS = 32
"""Accelerators take products of at least this many rows whose weights are in host memory."""


@dataclass(slots=True)
class Builder:
    """A graph under construction. All sizes in bytes; `t` is the number of tokens."""

    facts: ModelFacts
    shape: ContextShape
    placement: Placement
    build: Build
    graph: Graph = field(default_factory=Graph)
    inputs: dict[str, int] = field(default_factory=dict)
    tail: int = HOST
    """Where the weightless operations at a block's end run: on the accelerator of the next block."""
    core: int = HOST
    """Where the attention itself is computed, between the projections."""
    density: float = 0.0
    """Bytes per weight of a host block whose products an accelerator computes; 0 elsewhere."""

    def __post_init__(self) -> None:
        self.graph.copies = self.placement.copies

    @property
    def t(self) -> int:
        return self.shape.n_tokens

    def input(self, name: str, size: int) -> int:
        if name not in self.inputs:
            self.inputs[name] = self.graph.leaf(size, name)
        return self.inputs[name]

    def enter(self, index: int, next_device: int, *, recurrent_next: bool = False) -> None:
        """Go to a block: choose where it is computed.

        Args:
            recurrent_next: the following block fetches its state before this one's attention has ended, which
                pulls the attention to its accelerator.
        """
        device, placement = self.placement.blocks[index], self.placement
        borrowed = (
            device == HOST and placement.n_devices > 0 and placement.op_offload and self.t >= OFFLOAD_ROWS
        )
        self.density = self._density(index) if borrowed else 0.0
        self.graph.device = 1 if borrowed else device
        # a block that ends in a scale of its own (Gemma 4) ends where it is
        scaled = self.facts.architecture == "gemma4" and "no_block_scale" not in self.facts.features
        stays = device != HOST or scaled
        self.tail = self.graph.device if borrowed or stays else next_device
        self.core = next_device if recurrent_next and device == HOST else self.graph.device

    def _density(self, index: int) -> float:
        layer = self.facts.layers[index]
        return layer.weight_bytes / max(dense_elements(self.facts, layer), 1)

    def positions(self) -> int:
        return self.input("positions", I32 * self.t * (4 if "multi_rope" in self.facts.features else 1))

    def mm(self, x: int, width: int, label: str, rows: int | None = None) -> int:
        """Product with a weight matrix; one that is borrowed from the host is copied for it."""
        rows = self.t if rows is None else rows
        size = F32 * width * rows
        if not self.density:
            return self.graph.op(size, label, x)
        if rows < OFFLOAD_ROWS:
            return self.graph.op(size, label, x, device=HOST)
        matrix = self.graph.sizes[x] // (F32 * rows) * width
        return self.graph.op(
            size, label, self.graph.buffer(int(matrix * self.density), label + " weight", HOST), x
        )

    def norm(self, x: int, label: str = "norm") -> int:
        """A norm and its scale: in place where nobody else reads `x`."""
        return self.graph.op(self.graph.sizes[x], label, x, inplace=True)

    def same(self, label: str, *sources: int, device: int | None = None) -> int:
        """An elementwise operation of the size of its first source, in place where ggml can."""
        return self.graph.op(self.graph.sizes[sources[0]], label, *sources, inplace=True, device=device)

    def embed(self) -> int:
        """Token embeddings, looked up on the host."""
        g, size = self.graph, F32 * self.facts.n_embd * self.t
        g.device = HOST
        tokens = self.input("tokens", I32 * self.t)
        x = g.op(size, "embeddings", tokens)
        if self.build.idle_embd_input:
            self.input("embedding input", size)
        if self.facts.n_embd_per_layer:
            table = F32 * self.facts.n_embd_per_layer * self.facts.n_layer * self.t
            rows = g.op(table, "own embedding rows", self.input("own tokens", I32 * self.t))
            first = self.placement.blocks[0]
            self.inputs["own table"] = g.op(
                table, "own embedding table", rows, inplace=first != HOST, device=first
            )
            self.inputs["embeddings"] = x
        return x

    def own_embeddings(self) -> int:
        """One small embedding per block and token: from a table and, at first use, from a projection."""
        if "own embeddings" not in self.inputs:
            width = self.facts.n_embd_per_layer * self.facts.n_layer
            projected = self.mm(self.inputs["embeddings"], width, "own embedding projection")
            projected = self.graph.op(self.graph.sizes[projected], "own embedding norm", projected)
            mixed = self.same("own embeddings mixed", projected, self.inputs["own table"])
            self.inputs["own embeddings"] = self.graph.op(self.graph.sizes[mixed], "own embeddings", mixed)
        return self.inputs["own embeddings"]

    def gather(self, *tensors: int) -> list[int]:
        """Keep the output rows only."""
        ids = self.input("output ids", I32 * self.shape.n_outputs)
        rows = []
        for x in tensors:
            size = self.graph.sizes[x] // self.t * self.shape.n_outputs
            rows.append(self.graph.op(size, "output rows", x, ids))
        return rows

    # Caches and masks of attention.

    def cache(self, layer: Layer, index: int) -> tuple[int, int]:
        """(K, V) buffers of a block, with the bytes that a copy to another device would take."""
        cells = self.shape.cells(layer.windowed, self.facts.window) * self.shape.streams
        device = (self.placement.caches or self.placement.blocks)[index] if self.shape.offload_kv else HOST
        k = row_bytes(self.shape.type_k, layer.n_head_kv * layer.head_k) * cells
        v = row_bytes(self.shape.type_v, layer.n_head_kv * layer.head_v) * cells
        own = not self.placement.caches
        k_cache = self.graph.buffer(k, "K cache", device, own=own)
        return k_cache, self.graph.buffer(v, "V cache", device, own=own)

    def mask(self, layer: Layer) -> int:
        cells = self.shape.cells(layer.windowed, self.facts.window)
        width = F16 if self.shape.flash and self.build.mask_f16 else F32
        name = "window mask" if layer.windowed else "mask"
        mask = self.input(name, width * cells * self.t)
        if self.shape.flash and not self.build.mask_f16:
            key = f"{name} f16 {self.graph.device}"
            if key not in self.inputs:
                self.inputs[key] = self.graph.op(F16 * cells * self.t, "mask as f16", mask)
            return self.inputs[key]
        return mask
