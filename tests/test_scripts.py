"""What set-up decides, says and skips, without building anything."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import bootstrap  # noqa: E402
import check  # noqa: E402
import machine  # noqa: E402
from machine import Build, Machine, SetupError, choose_backend, probe, wheel_key  # noqa: E402

posix_only = pytest.mark.skipif(os.name != "posix", reason="POSIX only")
BARE = Machine(
    system="Linux", arch="x86_64", cpu="avx2 fma", cxx="/usr/bin/c++", nvidia=None, cuda=None, nvcc=None,
    hipcc=None, rocm_gpu=False, glslc=None, vulkan_gpu=None,
)  # fmt: skip
NVIDIA = replace(BARE, nvidia="NVIDIA GeForce RTX 4090, 550.54.14", cuda="12.4")
VULKAN_SUMMARY = """
GPU0:
	deviceType = PHYSICAL_DEVICE_TYPE_{}
	deviceName = AMD Radeon RX 7900 XTX (RADV NAVI31)
GPU1:
	deviceType = PHYSICAL_DEVICE_TYPE_CPU
	deviceName = llvmpipe
"""


def build_of(facts: Machine, backend: str = "cpu", prebuilt: str | None = None) -> Build:
    return Build("0.3.36", backend, (), facts, prebuilt, (), "0.3.36-cpu-abc")


def fake_tool(folder: Path, name: str, body: str) -> None:
    tool = folder / name
    tool.write_text("#!/bin/sh\n" + body)
    tool.chmod(0o755)


class TestBackend:
    @pytest.mark.parametrize(
        ("facts", "backend", "flag"),
        [
            (BARE, "cpu", "-DGGML_RPC=ON"),
            (replace(NVIDIA, nvcc="/usr/local/cuda/bin/nvcc"), "cuda", "-DCMAKE_CUDA_ARCHITECTURES=native"),
            (replace(BARE, system="Darwin", arch="arm64"), "metal", "-DGGML_METAL=ON"),
            (replace(BARE, system="Darwin"), "cpu", "-DGGML_METAL=OFF"),
            (replace(BARE, rocm_gpu=True, hipcc="/opt/rocm/bin/hipcc"), "rocm", "-DGGML_HIP=ON"),
            (replace(BARE, vulkan_gpu="RX 7900 XTX", glslc="/usr/bin/glslc"), "vulkan", "-DGGML_VULKAN=ON"),
            (replace(BARE, vulkan_gpu="RX 7900 XTX"), "cpu", "-DGGML_RPC=ON"),
        ],
    )
    def test_detection(self, facts: Machine, backend: str, flag: str) -> None:
        choice = choose_backend(facts, None)
        assert choice.backend == backend
        assert flag in choice.flags and "-DGGML_RPC=ON" in choice.flags

    def test_a_gpu_that_stays_unused_is_named_with_what_is_missing(self) -> None:
        assert "glslc" in choose_backend(replace(BARE, vulkan_gpu="RX 7900 XTX"), None).why
        assert "hipcc" in choose_backend(replace(BARE, rocm_gpu=True), None).why

    def test_nvidia_without_its_compiler_stops_with_all_choices(self) -> None:
        with pytest.raises(SetupError) as stop:
            choose_backend(NVIDIA, None)
        text = str(stop.value)
        assert text.startswith("error: an NVIDIA GPU is here (NVIDIA GeForce RTX 4090, 550.54.14)")
        assert "nvidia-cuda-toolkit" in text and "/cu124" in text
        assert "--backend vulkan" in text and "--backend cpu" in text

    @pytest.mark.parametrize("asked", ["vulkan", "cpu"])
    def test_nvidia_without_its_compiler_takes_the_other_choices(self, asked: str) -> None:
        assert choose_backend(NVIDIA, asked).backend == asked

    def test_a_prebuilt_wheel_needs_no_compiler(self) -> None:
        assert choose_backend(NVIDIA, "cuda", prebuilt=True).backend == "cuda"

    def test_a_compiler_off_the_path_is_handed_to_cmake(self) -> None:
        flags = choose_backend(replace(NVIDIA, nvcc="/opt/cuda/bin/nvcc"), "cuda").flags
        assert "-DCMAKE_CUDA_COMPILER=/opt/cuda/bin/nvcc" in flags

    def test_metal_elsewhere_is_refused(self) -> None:
        with pytest.raises(SetupError, match="macOS only"):
            choose_backend(BARE, "metal")

    @posix_only
    def test_probe_reads_the_drivers_own_tools(self, tmp_path: Path) -> None:
        banner = "echo '| NVIDIA-SMI 550.54.14   Driver Version: 550.54.14   CUDA Version: 12.4 |'"
        fake_tool(
            tmp_path, "nvidia-smi", f'if [ "$1" ]; then echo "NVIDIA H200, 550.54.14"; else {banner}; fi\n'
        )
        fake_tool(tmp_path, "g++", "")
        facts = probe({"PATH": str(tmp_path)})
        assert (facts.nvidia, facts.cuda) == ("NVIDIA H200, 550.54.14", "12.4")
        assert facts.cxx == str(tmp_path / "g++")
        assert (facts.glslc, facts.vulkan_gpu) == (None, None)

    @posix_only
    def test_a_driver_that_does_not_answer_is_no_gpu(self, tmp_path: Path) -> None:
        fake_tool(tmp_path, "nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9\n")
        assert probe({"PATH": str(tmp_path)}).nvidia is None

    def test_only_a_discrete_vulkan_gpu_counts(self) -> None:
        assert (
            machine.discrete_gpu(VULKAN_SUMMARY.format("DISCRETE_GPU"))
            == "AMD Radeon RX 7900 XTX (RADV NAVI31)"
        )
        assert machine.discrete_gpu(VULKAN_SUMMARY.format("INTEGRATED_GPU")) is None
        assert machine.discrete_gpu("") is None


class TestKey:
    def test_each_ingredient_changes_it(self) -> None:
        keys = {
            wheel_key("0.3.36", "cpu", ("-DA=1", "-DB=2"), "avx2", None),
            wheel_key("0.3.37", "cpu", ("-DA=1", "-DB=2"), "avx2", None),
            wheel_key("0.3.36", "cuda", ("-DA=1", "-DB=2"), "avx2", None),
            wheel_key("0.3.36", "cpu", ("-DA=1",), "avx2", None),
            wheel_key("0.3.36", "cpu", ("-DA=1", "-DB=2"), "avx2 avx512", None),
            wheel_key("0.3.36", "cpu", ("-DA=1", "-DB=2"), "avx2", "https://x/cu124"),
        }
        assert len(keys) == 6

    def test_the_order_of_flags_does_not(self) -> None:
        assert wheel_key("1", "cpu", ("-DA=1", "-DB=2"), "x", None) == wheel_key(
            "1", "cpu", ("-DB=2", "-DA=1"), "x", None
        )

    def test_it_is_a_folder_name_that_says_what_it_is(self) -> None:
        assert re.fullmatch(r"0\.3\.36-cuda-[0-9a-f]{12}", wheel_key("0.3.36", "cuda", (), "x", None))


class TestMissing:
    @pytest.mark.parametrize(
        ("facts", "backend", "said"),
        [
            (replace(BARE, cxx=None), "cpu", "no C++ compiler found"),
            (BARE, "vulkan", "needs `glslc`"),
            (BARE, "rocm", "needs `hipcc`"),
        ],
    )
    def test_a_missing_tool_is_one_sentence_with_the_remedy(
        self, facts: Machine, backend: str, said: str
    ) -> None:
        with pytest.raises(SetupError, match=re.escape(said)) as stop:
            machine.check_tools(build_of(facts, backend))
        error, hint = str(stop.value).split("\n")
        assert error.startswith("error: ") and hint.startswith("hint: ")

    def test_windows_compilers_are_left_to_cmake(self) -> None:
        machine.check_tools(build_of(replace(BARE, cxx=None, system="Windows")))

    def test_a_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bootstrap, "NEEDED_BYTES", 10**18)
        with pytest.raises(SetupError, match=r"only [\d.]+ GB free on the disk of"):
            bootstrap.check_disk([tmp_path])

    @posix_only
    def test_an_old_python(self, tmp_path: Path) -> None:
        for tool in ("bash", "env", "dirname"):
            (tmp_path / tool).symlink_to(str(shutil.which(tool)))
        fake_tool(tmp_path, "python3", 'case "$2" in *print*) echo 3.9;; *) exit 1;; esac\n')
        run = subprocess.run(
            [str(ROOT / "scripts/setup")], env={"PATH": str(tmp_path)}, capture_output=True, text=True
        )
        assert run.returncode == 1
        assert "error: localspec needs Python 3.11 or newer; python3 is 3.9\nhint: " in run.stderr

    def test_a_failed_build_shows_the_end_of_its_log(self, tmp_path: Path) -> None:
        program = "import sys; print('\\n'.join(f'line {i}' for i in range(40))); sys.exit(3)"
        with pytest.raises(SetupError, match="the build failed") as stop:
            bootstrap.run_logged("the build", [sys.executable, "-c", program], tmp_path / "build.log")
        assert "line 39" in str(stop.value) and "line 3\n" not in str(stop.value)
        assert str(tmp_path / "build.log") in str(stop.value)


LIBRARY = {"build": "llama-cpp-python 0.3.36", "rpc": True, "devices": ["CUDA0", "CPU"]}


class TestLibrary:
    def test_what_was_chosen_is_there(self) -> None:
        assert "CUDA0, CPU, with RPC" in bootstrap.judge_library(LIBRARY, "cuda", None)

    @pytest.mark.parametrize("backend", ["vulkan", "metal", "rocm"])
    def test_a_backend_without_device_is_refused(self, backend: str) -> None:
        with pytest.raises(SetupError, match=f"offers no {backend} device"):
            bootstrap.judge_library(LIBRARY, backend, None)

    def test_rpc_may_be_missing_only_from_a_prebuilt_wheel(self) -> None:
        facts = LIBRARY | {"rpc": False}
        assert "without RPC" in bootstrap.judge_library(facts, "cuda", "https://x")
        with pytest.raises(SetupError, match="without RPC"):
            bootstrap.judge_library(facts, "cuda", None)

    @posix_only
    def test_one_that_dies_while_decoding_is_refused(self) -> None:
        """Seen with GCC 12 on a CPU with AMX: SIGSEGV in the first pass of several rows."""
        for died, why in (
            ("os.kill(os.getpid(), 11)", "SIGSEGV"),
            ("raise ValueError('no numbers')", "no numbers"),
        ):
            trial = subprocess.run(
                [sys.executable, "-c", f"import os; {died}"], capture_output=True, text=True
            )
            with pytest.raises(SetupError, match=f"cannot decode: .*{why}") as stop:
                bootstrap.judge_trial(trial)
            assert "GGML_NATIVE=OFF scripts/setup --rebuild" in str(stop.value)

    def test_amx_kernels_are_left_out(self) -> None:
        assert machine.compiler_flags(replace(BARE, cpu="amx_int8 amx_tile avx2")) == ("-U__AMX_INT8__",)
        assert machine.compiler_flags(replace(BARE, cpu="avx2 avx512f")) == ()


class TestStamp:
    stamp = bootstrap.Stamp("cuda", None, "0.3.36-cuda-abc", ("serve", "test"), "0123")

    def test_it_survives_its_file(self, tmp_path: Path) -> None:
        bootstrap.write_stamp(tmp_path / "s", self.stamp)
        assert bootstrap.read_stamp(tmp_path / "s") == self.stamp

    @pytest.mark.parametrize("text", ["", "{}", "[1]", '{"backend": "cpu", "other": 1}', "\x00"])
    def test_anything_else_is_no_stamp(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "s").write_text(text)
        assert bootstrap.read_stamp(tmp_path / "s") is None
        assert bootstrap.read_stamp(tmp_path / "absent") is None

    @pytest.mark.parametrize(
        ("asked", "kept"),
        [
            ({}, True),
            ({"backend": "cuda"}, False),
            ({"prebuilt": "https://x"}, False),
            ({"rebuild": True}, False),
            ({"print_wheel": True}, False),
        ],
    )
    def test_llama_is_kept_unless_something_is_asked(
        self, tmp_path: Path, asked: dict[str, object], kept: bool
    ) -> None:
        python = bootstrap.venv_python(tmp_path / "venv")
        python.parent.mkdir(parents=True)
        python.touch()
        before = replace(self.stamp, wheel=f"{bootstrap.pinned('llama-cpp-python')}-cuda-abc")
        none = {"backend": None, "prebuilt": None, "rebuild": False, "print_wheel": False}
        args = Namespace(**none | asked)
        assert bootstrap.keeps_llama(args, before, tmp_path / "venv", tmp_path / "wheels") is kept
        older = replace(before, wheel="0.0.1-cuda-abc")
        assert not bootstrap.keeps_llama(args, older, tmp_path / "venv", tmp_path / "wheels")


def test_arguments_after_run_are_not_ours() -> None:
    assert bootstrap.split_run(["--extras", "test", "--run", "-m", "pytest", "--run", "-x"]) == (
        ["--extras", "test"],
        ["-m", "pytest", "--run", "-x"],
    )
    assert bootstrap.split_run(["--rebuild"]) == (["--rebuild"], [])


def test_an_unknown_extra_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        bootstrap.parse(["--extras", "tests"])
    assert stop.value.code == 2
    assert "unknown extra tests; known: dev, serve, test" in capsys.readouterr().err


@posix_only
@pytest.mark.parametrize(
    ("script", "runs"),
    [
        ("demo", "-m localspec demo --json a b"),
        ("test", "-m pytest --json a b"),
        ("check", "scripts/check.py --json a b"),
    ],
)
def test_a_ready_environment_is_used_at_once_from_a_path_with_spaces(
    tmp_path: Path, script: str, runs: str
) -> None:
    root = tmp_path / "a clone"
    shutil.copytree(ROOT / "scripts", root / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root)
    (root / ".venv/bin").mkdir(parents=True)
    fake_tool(root / ".venv/bin", "python", 'echo "$@"\n')
    extras = ("dev", "serve", "test", "train")
    key = f"{bootstrap.pinned('llama-cpp-python')}-cpu-abc"
    stamp = bootstrap.Stamp("cpu", None, key, extras, bootstrap.inputs_hash(root))
    (root / ".venv/localspec-setup.json").write_text(json.dumps(asdict(stamp)))
    environ = {k: v for k, v in os.environ.items() if not k.startswith("LOCALSPEC")}
    run = subprocess.run(
        [str(root / "scripts" / script), "--json", "a b"],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, runs + "\n", "")


def test_the_lock_pins_everything_the_project_asks_for() -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    asked = [Requirement(line) for group in [project["dependencies"], *extras] for line in group]
    for requirement in asked:
        if requirement.name != "localspec":
            assert requirement.specifier.contains(bootstrap.pinned(requirement.name)), requirement


def test_the_size_table_lists_only_long_files(tmp_path: Path) -> None:
    (tmp_path / "localspec").mkdir()
    (tmp_path / "localspec" / "long.py").write_text("x\n" * 401)
    (tmp_path / "localspec" / "short.py").write_text("x\n" * 400)
    assert check.long_files(tmp_path) == [(401, Path("localspec/long.py"))]
