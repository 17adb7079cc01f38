"""The notebooks run from top to bottom, and what is committed is what they print."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "notebooks"
every_notebook = pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)


def printed(notebook):
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", []) if o.output_type == "stream"]
    return "".join(output.text for output in outputs)


def pictures(notebook):
    return sum("image/png" in o.get("data", {}) for cell in notebook.cells for o in cell.get("outputs", []))


@every_notebook
def test_outputs_are_committed(path):
    notebook = nbformat.read(path, as_version=4)
    assert pictures(notebook) > 0
    assert path.stat().st_size < 2_000_000
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error"
            assert output.get("name") != "stderr"


@pytest.mark.slow(minutes=2)
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:zmq.*")  # pyzmq and its event loops
@every_notebook
def test_runs(path):
    committed = nbformat.read(path, as_version=4)
    fresh = nbformat.read(path, as_version=4)
    NotebookClient(fresh, timeout=600, resources={"metadata": {"path": str(FOLDER)}}).execute()
    assert pictures(fresh) == pictures(committed)
    assert printed(fresh) == printed(committed)
