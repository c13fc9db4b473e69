from typing import Any

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved."""
    found: list[Figure] = []
    savefig = Figure.savefig

    def keep(figure: Figure, *args: Any, **options: Any) -> None:
        found.append(figure)
        savefig(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return found
