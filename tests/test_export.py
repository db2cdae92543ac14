"""Launches for other engines: every flag in the engine's table, unknown combinations refused."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from localspec import cli
from localspec.catalog import Drafter, ModelFile, Pair, PairKind, load_catalog
from localspec.engine.settings import LoadSettings
from localspec.errors import UsageError
from localspec.export.compose import compose
from localspec.export.engines import sglang, speculative_config, vllm
from localspec.export.facts import LLAMA_SERVER, SGLANG, VLLM, Engine
from localspec.export.launch import Builder, Launch, Wishes
from localspec.export.llamacpp import llama_server, rpc

EVERYTHING = Wishes("0.0.0.0", 8001, 4096, 4, 2, 0.8, 16)
FULL_LOAD = LoadSettings(
    n_ctx=4096, gpu_layers=20, draft_gpu_layers=3, kv=("q8_0", "q5_1"), draft_kv=("q8_0", "q8_0"), mmap=False,
    mlock=True, threads=4, n_batch=1024, n_ubatch=256, flash_attn="on", device="CUDA0", draft_device="CUDA1",
    tensor_split=(3.0, 1.0), n_cpu_moe=2, rpc=("a:1", "b:2"),
)  # fmt: skip


def pair(
    kind: PairKind,
    *,
    k: int | None = None,
    vocab: tuple[Any, Any] = (1000, 1000),
    repo: str | None = "o/draft",
) -> Pair:
    target = ModelFile("target", "t.gguf", "q/target-GGUF", base_repo="o/target", facts={"n_vocab": vocab[0]})
    draft = ModelFile("draft", "d.gguf", "q/draft-GGUF", base_repo=repo, facts={"n_vocab": vocab[1]})
    alone = kind in ("ngram", "mtp-inside")
    return Pair("the-pair", target, (Drafter(kind, None if alone else draft, k),))


def options(launch: Launch) -> dict[str, str]:
    """Flag → value."""
    words = launch.argv
    return {flag: words[i + 1] for i, flag in enumerate(words) if flag.startswith("--")}


@pytest.mark.parametrize(("engine", "make"), [(VLLM, vllm), (SGLANG, sglang)])
@pytest.mark.parametrize("kind", ["draft", "ngram", "mtp-inside", "mtp", "eagle3", "dflash", "dflash2"])
def test_every_flag_is_the_engine_s_own(engine: Engine, make: Callable[..., Launch], kind: PairKind) -> None:
    launch = make(pair(kind), EVERYTHING)
    assert set(options(launch)) <= engine.flags
    assert shlex.split(launch.command().replace("\\\n", "")) == list(launch.argv)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", launch.checked) and launch.version == engine.version


@pytest.mark.parametrize("make", [vllm, sglang])
def test_medusa_is_refused_with_the_version(make: Callable[..., Launch]) -> None:
    with pytest.raises(
        UsageError, match=r"(vLLM 0\.33\.0|SGLang 0\.5\.23) has no method for the medusa draft"
    ):
        make(pair("medusa"), Wishes())


class TestVllm:
    @pytest.mark.parametrize(
        ("kind", "config"),
        [
            ("draft", {"method": "draft_model", "model": "o/draft", "num_speculative_tokens": 5}),
            (
                "ngram",
                {
                    "method": "ngram",
                    "num_speculative_tokens": 5,
                    "prompt_lookup_min": 2,
                    "prompt_lookup_max": 5,
                },
            ),
            ("mtp-inside", {"method": "mtp", "num_speculative_tokens": 1}),
            ("mtp", {"method": "mtp", "model": "o/draft", "num_speculative_tokens": 1}),
            ("eagle3", {"method": "eagle3", "model": "o/draft", "num_speculative_tokens": 3}),
        ],
    )
    def test_speculative_config(self, kind: PairKind, config: dict[str, Any]) -> None:
        launch = vllm(pair(kind), Wishes())
        assert launch.argv[:3] == ("vllm", "serve", "o/target")
        assert json.loads(options(launch)["--speculative-config"]) == config

    def test_the_pair_s_length_and_the_user_s(self) -> None:
        for wishes, k in ((Wishes(), 7), (Wishes(k=2), 2)):
            found = pair("eagle3", k=7)
            assert speculative_config(found, found.drafters[0], wishes)["num_speculative_tokens"] == k

    def test_a_block_draft_without_a_length_is_not_guessed(self) -> None:
        with pytest.raises(UsageError, match="names no draft length") as caught:
            vllm(pair("dflash"), Wishes())
        assert caught.value.hint == "give --k N"

    def test_vocabularies_of_different_size(self) -> None:
        config = json.loads(
            options(vllm(pair("draft", vocab=(1000, 1024)), Wishes()))["--speculative-config"]
        )
        assert config["use_heterogeneous_vocab"] is True
        assert any(
            "use_heterogeneous_vocab" in n for n in vllm(pair("draft", vocab=(1000, None)), Wishes()).notes
        )

    def test_a_head_inside_the_target_s_repository_needs_no_model(self) -> None:
        config = json.loads(options(vllm(pair("mtp", repo="o/target"), Wishes()))["--speculative-config"])
        assert "model" not in config

    def test_an_unknown_repository_is_asked_for(self) -> None:
        with pytest.raises(
            UsageError, match="repository of `draft` in the pair `the-pair` is not known"
        ) as caught:
            vllm(pair("eagle3", repo=None), Wishes())
        assert caught.value.hint == "give --draft-repo OWNER/NAME"
        config = options(vllm(pair("eagle3", repo=None), Wishes(draft_repo="me/head")))[
            "--speculative-config"
        ]
        assert json.loads(config)["model"] == "me/head"
        with pytest.raises(UsageError, match="no effect"):
            vllm(pair("ngram"), Wishes(draft_repo="me/head"))

    def test_memory_and_size(self) -> None:
        found = options(vllm(pair("ngram"), EVERYTHING))
        assert found["--max-model-len"] == "4096"
        assert found["--gpu-memory-utilization"] == "0.8"
        assert found["--tensor-parallel-size"] == "2"
        assert found["--max-num-seqs"] == "16"
        assert (found["--host"], found["--port"], found["--served-model-name"]) == (
            "0.0.0.0",
            "8001",
            "the-pair",
        )


class TestSglang:
    @pytest.mark.parametrize(
        ("kind", "algorithm", "draft", "steps"),
        [
            ("draft", "STANDALONE", "o/draft", "4"),
            ("eagle3", "EAGLE3", "o/draft", "4"),
            ("mtp-inside", "NEXTN", "o/target", "4"),
            ("ngram", "NGRAM", None, None),
            ("dflash", "DFLASH", "o/draft", None),
        ],
    )
    def test_algorithms(self, kind: PairKind, algorithm: str, draft: str | None, steps: str | None) -> None:
        found = options(sglang(pair(kind), Wishes(k=4)))
        assert found["--model-path"] == "o/target"
        assert found["--speculative-algorithm"] == algorithm
        assert found.get("--speculative-draft-model-path") == draft
        assert found.get("--speculative-num-steps") == steps
        assert found["--speculative-num-draft-tokens"] == "5", "the target's own token counts"

    def test_vocabularies_of_different_size_are_refused(self) -> None:
        with pytest.raises(UsageError, match="wants vocabularies of one size"):
            sglang(pair("draft", vocab=(1000, 1024)), Wishes())


class TestLlamaServer:
    @pytest.mark.parametrize(
        ("kind", "name", "length"),
        [
            ("draft", "draft-simple", "--spec-draft-n-max"),
            ("mtp-inside", "draft-mtp", "--spec-draft-n-max"),
            ("mtp", "draft-mtp", "--spec-draft-n-max"),
            ("eagle3", "draft-eagle3", "--spec-draft-n-max"),
            ("dflash2", "draft-dflash", "--spec-draft-n-max"),
            ("ngram", "ngram-simple", "--spec-ngram-simple-size-m"),
        ],
    )
    def test_types(self, kind: PairKind, name: str, length: str, tmp_path: Path) -> None:
        launch = llama_server(pair(kind), replace(EVERYTHING, gpus=None), FULL_LOAD, tmp_path)
        found = options(launch)
        assert set(found) <= LLAMA_SERVER.flags
        assert (found["--spec-type"], found[length]) == (name, "4")
        assert (found["--hf-repo"], found["--hf-file"]) == ("q/target-GGUF", "t.gguf")
        assert found.get("--spec-draft-hf") == (None if kind in ("ngram", "mtp-inside") else "q/draft-GGUF")

    def test_files_on_this_disk_are_used_in_place(self, tmp_path: Path) -> None:
        path = tmp_path / "q" / "target-GGUF" / "t.gguf"
        path.parent.mkdir(parents=True)
        path.touch()
        found = options(llama_server(pair("draft"), Wishes(), LoadSettings(), tmp_path))
        assert found["--model"] == str(path) and "--hf-repo" not in found
        assert (found["--spec-draft-hf"], found["--spec-draft-model"]) == ("q/draft-GGUF", "d.gguf")

    def test_load_settings(self, tmp_path: Path) -> None:
        found = options(llama_server(pair("draft"), Wishes(), FULL_LOAD, tmp_path))
        assert {flag: found[flag] for flag in found if flag not in ("--hf-repo", "--hf-file", "--alias")} == {
            "--spec-type": "draft-simple", "--spec-draft-hf": "q/draft-GGUF", "--spec-draft-model": "d.gguf",
            "--ctx-size": "4096", "--gpu-layers": "20", "--cache-type-k": "q8_0", "--cache-type-v": "q5_1",
            "--flash-attn": "on", "--load-mode": "mlock", "--threads": "4", "--batch-size": "1024",
            "--ubatch-size": "256", "--device": "CUDA0", "--tensor-split": "3,1", "--n-cpu-moe": "2",
            "--rpc": "a:1,b:2", "--spec-draft-ngl": "3", "--spec-draft-type-k": "q8_0",
            "--spec-draft-type-v": "q8_0", "--spec-draft-device": "CUDA1",
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("mmap", "mlock", "mode"), [(True, False, None), (True, True, "mmap+mlock"), (False, False, "none")]
    )
    def test_load_modes(self, mmap: bool, mlock: bool, mode: str | None, tmp_path: Path) -> None:
        load = LoadSettings(mmap=mmap, mlock=mlock)
        assert options(llama_server(pair("ngram"), Wishes(), load, tmp_path)).get("--load-mode") == mode

    def test_medusa_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(
            UsageError, match=r"llama-server llama\.cpp 0c1e57098 .* has no method for the medusa"
        ):
            llama_server(pair("medusa"), Wishes(), LoadSettings(), tmp_path)


def test_a_flag_that_an_engine_does_not_have_cannot_be_written() -> None:
    with pytest.raises(AssertionError, match="has no --draft-max"):
        Builder(LLAMA_SERVER, []).add("--draft-max", 5)


def test_compose_is_what_docker_reads() -> None:
    launch = vllm(pair("ngram"), Wishes(gpus=2, n_ctx=4096))
    text = compose(replace(launch, argv=(*launch.argv, "$x")), gpus=2, host=None, port=9000)
    service = yaml.safe_load(text)["services"]["vllm"]
    assert service["image"] == f"vllm/vllm-openai:v{VLLM.version}"
    assert service["entrypoint"] == ["vllm", "serve"]
    assert service["command"][:2] == ["o/target", "--speculative-config"]
    assert json.loads(service["command"][2])["method"] == "ngram"
    assert service["command"][-5:] == ["$$x", "--host", "0.0.0.0", "--port", "8000"]
    assert service["ports"] == ["127.0.0.1:9000:8000"], "published on loopback unless asked otherwise"
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 2
    assert ":8000/health" in service["healthcheck"]["test"][-1]


def test_rpc_steps() -> None:
    steps = rpc(pair("ngram"), ("10.0.0.2:50052", "[::1]:1"))
    assert [command for _, command in steps] == [
        "ggml-rpc-server --host 10.0.0.2 --port 50052 --cache",
        "ggml-rpc-server --host ::1 --port 1 --cache",
        "localspec serve the-pair --rpc '10.0.0.2:50052,[::1]:1'",
    ]
    with pytest.raises(UsageError, match="no RPC server"):
        rpc(pair("ngram"), ())


def test_every_pair_of_the_catalogue_is_exported_or_refused_in_a_sentence(tmp_path: Path) -> None:
    for known in load_catalog().pairs.values():
        assert options(llama_server(known, Wishes(), LoadSettings(), tmp_path))["--spec-type"]
        for make in (vllm, sglang):
            try:
                launch = make(known, Wishes())
            except UsageError as error:
                assert error.hint and known.name in error.message, error
            else:
                assert not [word for word in launch.argv if "GGUF" in word.upper()], (
                    "unquantised repositories"
                )


class TestCommand:
    @pytest.fixture
    def run(self, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
        def call(*argv: str) -> tuple[int, str, str]:
            code = cli.run(["export", *argv])
            out, err = capsys.readouterr()
            return code, out, err

        return call

    def test_text_and_json(self, run: Callable[..., tuple[int, str, str]]) -> None:
        code, out, err = run("vllm", "demo", "--ctx", "2048")
        assert code == 0 and out.startswith(
            "vllm serve HuggingFaceTB/SmolLM2-135M-Instruct \\\n  --speculative"
        )
        assert f"arguments compared with vLLM {VLLM.version} on {VLLM.checked}" in err
        code, out, _ = run("llama-server", "demo", "--json", "--kv", "q8_0")
        told = json.loads(out)
        assert code == 0 and told["argv"][0] == "llama-server" and "--cache-type-k" in told["argv"]
        assert run("docker-compose", "demo")[1].startswith("# vLLM")
        assert "ggml-rpc-server" in run("rpc", "demo", "--rpc", "h:1")[1]

    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["vlm", "demo"], "unknown engine `vlm`"),
            (["vllm", "dem"], "unknown pair `dem`"),
            (["vllm", "demo", "--kv", "q8_0"], "`--kv` is a setting of llama.cpp and has no effect on vllm"),
            (["llama-server", "demo", "--gpus", "2"], "`--gpus` has no effect on llama-server"),
            (["rpc", "demo", "--rpc", "h:1", "--k", "2"], "`--k` has no effect on rpc"),
            (["rpc", "demo"], "no RPC server"),
        ],
    )
    def test_refusals(self, run: Callable[..., tuple[int, str, str]], argv: list[str], message: str) -> None:
        code, out, err = run(*argv)
        assert (code, out) == (2, "") and message in err
