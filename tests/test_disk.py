"""Writing where something is already."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kithkin.disk import write_text


def test_what_is_no_file_is_written_and_never_replaced(tmp_path: Path):
    """As root, `--out /dev/null` would take the device from the whole machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, "told")
        assert os.read(reader, 9) == b"told"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_what_another_program_reads_is_written():
    """As `--out /dev/stdout` of a command before a `|`, whose link leads to no name."""
    ours, theirs = os.pipe()
    write_text(Path(f"/dev/fd/{theirs}"), "told")
    assert os.read(ours, 9) == b"told"
    os.close(ours)
    os.close(theirs)


def test_a_link_stays_a_link_and_what_it_leads_to_is_written(tmp_path: Path):
    (tmp_path / "below").mkdir()
    link, file = tmp_path / "link", tmp_path / "below" / "file"
    link.symlink_to(file)
    write_text(link, "told")
    assert link.is_symlink()
    assert file.read_text() == "told"
    assert list(file.parent.iterdir()) == [file], "no draft is left"
