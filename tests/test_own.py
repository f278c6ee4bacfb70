"""What a user names as module:name is found, from whatever folder; and what is wrong with it is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kithkin import own
from kithkin.errors import KithkinError


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


def test_a_file_of_the_current_folder_is_a_module():
    write("my_net.py", "thing = 3")
    assert own.find("my_net:thing", "--model") == own.find("my_net.py:thing", "--model") == 3


def test_its_whole_name_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write("my_net.py", "thing = 4")
    name = own.whole("my_net:thing")
    assert name == f"{tmp_path / 'my_net.py'}:thing"
    monkeypatch.chdir("/")
    assert own.find(name, "--model") == 4
    assert own.whole(name) == name


def test_what_is_built_in_or_installed_keeps_its_name():
    assert [own.whole(name) for name in ("um", "resnet9", "json:loads")] == ["um", "resnet9", "json:loads"]
    assert own.find("json:loads", "--model")("3") == 3


def test_two_folders_may_each_have_a_file_of_one_name():
    write("a/net.py", "thing = 'a'")
    write("b/net.py", "thing = 'b'")
    assert [own.find(f"{folder}/net.py:thing", "--model") for folder in "ab"] == ["a", "b"]


def test_files_beside_it_and_packages_of_the_current_folder_are_found_and_the_path_is_left_as_it_was():
    write("beside_own_test.py", "thing = 5")
    write(
        "near.py",
        "from dataclasses import dataclass\nfrom beside_own_test import thing\n@dataclass\nclass C:\n    x: 'int' = 0\n",
    )
    write("pack_own_test/__init__.py", "")
    write("pack_own_test/net.py", "from . import other\nthing = other.thing")
    write("pack_own_test/other.py", "thing = 6")
    before = list(sys.path)
    assert own.find("near:thing", "--model") == 5
    assert own.find("pack_own_test.net:thing", "--model") == 6
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "problem", "remedy"),
    [
        (":f", "--model is ':f'.", "module:name"),
        ("net:", "--model is 'net:'.", "file.py:name"),
        ("no_such_net:f", "there is no module 'no_such_net'", "in the folder that holds its file"),
        ("json.nonsense:f", "there is no module 'json.nonsense'", "Install it"),
        ("no/such.py:f", "there is no file no/such.py", "Check the path"),
        ("json:lods", "json has no 'lods'", "Did you mean 'json:loads'?"),
        ("json:zzz", "json has no 'zzz'", "Define zzz there"),
        ("torn:f", "importing torn fails (SyntaxError: ", "Mend it"),
        ("needy:f", "importing needy fails (ModuleNotFoundError: No module named 'nonsense_xyz')", "Mend it"),
        ("angry:f", "importing angry fails (RuntimeError: two lines)", "Mend it"),
    ],
)
def test_what_cannot_be_found_is_a_mistake_with_a_remedy(name: str, problem: str, remedy: str):
    write("torn.py", "def f(:\n")
    write("needy.py", "import nonsense_xyz\n")
    write("angry.py", "raise RuntimeError('two\\nlines')\n")
    with pytest.raises(KithkinError) as e:
        own.find(name, "--model")
    assert problem in e.value.problem
    assert remedy in e.value.remedy


def test_a_module_whose_import_failed_is_tried_again():
    write("mended.py", "raise ValueError")
    with pytest.raises(KithkinError, match=r"fails \(ValueError\)"):
        own.find("mended:f", "--model")
    write("mended.py", "f = 1")
    assert own.find("mended:f", "--model") == 1


def test_the_hash_is_that_of_the_file():
    Path("my_net.py").write_bytes(b"x = 1\n")
    assert own.source_hash("my_net:x", "--model") == "9e26bf369911c45c243c684147b23fc9e1dcfcf257d299a1c632016a6fcd33f4"
    assert own.source_hash("sys:path", "--model") is None


def test_a_file_beside_it_is_that_of_its_own_folder_and_belongs_to_the_hash():
    for folder in "ab":
        write(f"{folder}/net.py", "from part_own_test import WHO")
        write(f"{folder}/part_own_test.py", f"WHO = '{folder}'")
    assert [own.find(f"{folder}/net.py:WHO", "--model") for folder in "aba"] == ["a", "b", "a"]
    a, b = (own.source_hash(f"{folder}/net.py:WHO", "--model") for folder in "ab")
    assert a != b
    assert own.source_hash("a/net.py:WHO", "--model") == a
    own.look_again()
    assert own.source_hash("a/net.py:WHO", "--model") == a


@pytest.mark.parametrize("changed", ["net.py", "part_own_test.py"])
def test_a_changed_file_is_that_of_the_next_run_and_not_of_this_one(changed: str):
    write("net.py", "from part_own_test import WHO\nMINE = 1")
    write("part_own_test.py", "WHO = 1")
    before = own.find("net:MINE", "--model"), own.find("net:WHO", "--model"), own.source_hash("net:WHO", "--model")
    assert before[:2] == (1, 1)
    write(changed, Path(changed).read_text().replace("= 1", "= 1000"))
    assert (own.find("net:MINE", "--model"), own.find("net:WHO", "--model"), own.source_hash("net:WHO", "--model")) == before
    own.look_again()
    assert own.find("net:MINE", "--model") + own.find("net:WHO", "--model") == 1001
    assert own.source_hash("net:WHO", "--model") != before[2]


def test_code_that_ends_python_is_named():
    write("my_net.py", "raise SystemExit(0)")
    with pytest.raises(KithkinError, match=r"importing my_net fails \(SystemExit: 0\)"):
        own.find("my_net:thing", "--model")
