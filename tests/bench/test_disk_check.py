"""The check that a simulated volume behaves like spinning disks: where it draws the line."""

from __future__ import annotations

import pytest

from scripts.bench.disk_check import Figures, faults


def test_spinning_disks_pass() -> None:
    assert faults(Figures(random_128k_mb_s=10, random_2m_mb_s=50, sequential_mb_s=100)) == []


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        (Figures(random_128k_mb_s=10, random_2m_mb_s=49, sequential_mb_s=200), "4.9 x random 128 KiB"),
        (Figures(random_128k_mb_s=10, random_2m_mb_s=60, sequential_mb_s=114), "1.9 x random 2 MiB"),
    ],
)
def test_anything_else_fails(figures: Figures, words: str) -> None:
    (fault,) = faults(figures)
    assert words in fault


def test_memory_fails_twice() -> None:
    assert len(faults(Figures(random_128k_mb_s=5000, random_2m_mb_s=8000, sequential_mb_s=9000))) == 2
