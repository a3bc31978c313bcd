"""The environments of the others: the two releases install one module, so each has its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

WORK = Path(__file__).resolve().parent / ".work"

# Installed without their declared dependencies, which include JupyterLab and pytest but
# not everything they import; these lists are what importing and running them needs.
_NEEDED = ("pandas==2.3.3", "plotly", "networkx", "psutil", "pyyaml")
PINS: Mapping[str, Sequence[str]] = {
    "hta": ("HolisticTraceAnalysis==0.5.0", *_NEEDED),
    "traceinsight": ("traceinsight==0.6.1", *_NEEDED),
}


def python_of(name: str) -> str:
    """Path of the interpreter of an environment in PINS, which is made if need be."""
    folder = WORK / name
    python, stamp = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join(PINS[name])
    if stamp.is_file() and stamp.read_text() == wanted:
        compile_packages(str(python))
        return str(python)
    package, *rest = PINS[name]
    print(f"installing {package} into {folder} ...", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *rest], check=True)
    subprocess.run([*pip, "--no-deps", package], check=True)
    stamp.write_text(wanted)
    compile_packages(str(python))
    return str(python)


def compile_packages(python: str) -> None:
    """Write the bytecode of everything installed, where it is missing or stale.

    An environment that was copied, or that may not write bytecode, would compile its
    packages at every start: more than a second of CPU for pandas and plotly.
    """
    code = (
        "import compileall, sysconfig\n"
        "compileall.compile_dir(sysconfig.get_path('purelib'), quiet=2)\n"
    )
    subprocess.run([python, "-c", code], check=False, stdout=subprocess.DEVNULL)


def versions(python: str, packages: Sequence[str]) -> dict[str, str]:
    """Version of Python and of each installed package, as the interpreter itself says."""
    code = (
        "import sys, importlib.metadata as m\n"
        "print('python', sys.version.split()[0])\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(name, m.version(name))\n"
        "    except m.PackageNotFoundError: pass\n"
    )
    output = subprocess.run(
        [python, "-c", code, *packages], check=True, capture_output=True, text=True
    ).stdout
    return dict(line.split(" ", 1) for line in output.splitlines())
