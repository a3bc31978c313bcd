"""Loads the agent into every Python of a job: ``diagnose run`` puts this folder on PYTHONPATH.

The agent is loaded under its private name, without importing diagnose, and only where the
environment has ``DIAGNOSE_AGENT=1``. The site's own sitecustomize, which this file hides, is
run afterwards. Any Python may come by here, so the syntax is that of old ones.
"""

# mypy: ignore-errors
import os
import sys


def _load_agent(folder, name):
    import importlib.util

    start = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location(name, start, submodule_search_locations=[folder])
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    try:
        spec.loader.exec_module(package)
        importlib.import_module(name + ".autoload").enable()
    except BaseException:
        sys.modules.pop(name, None)
        raise


def _run_hidden_sitecustomize(here):
    """Run the sitecustomize that Python would have found without this folder."""
    import importlib.machinery
    import importlib.util

    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_HERE = os.path.dirname(os.path.abspath(__file__))

if sys.version_info >= (3, 9) and os.environ.get("DIAGNOSE_AGENT") == "1":
    try:
        if "_diagnose_agent" not in sys.modules:
            _load_agent(os.path.dirname(_HERE), "_diagnose_agent")
    except Exception:
        pass

if sys.version_info >= (3, 4):
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    _run_hidden_sitecustomize(_HERE)
