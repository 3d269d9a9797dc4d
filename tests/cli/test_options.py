"""The grammar of `-o`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mummufs.core.errors import UsageError
from mummufs.options import OWN_OPTIONS, parse_options, quote_option, split_options

VALUES = st.text(st.characters(blacklist_characters="\0"), min_size=1) | st.text('a,"\\ =', min_size=1)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("", []),
        (",,ro,,", ["ro"]),
        ("ro,store=/a", ["ro", "store=/a"]),
        ('store="/a,b",ro', ["store=/a,b", "ro"]),
        ('"store=/a,b",ro', ["store=/a,b", "ro"]),
        ('store=/a","b', ["store=/a,b"]),
        (r"store=/a\,ro", ["store=/a\\", "ro"]),
        (r"store=/a\"b", ['store=/a"b']),
        (r"store=a\\b", [r"store=a\\b"]),
        ("store=/a b", ["store=/a b"]),
    ],
)
def test_items(text: str, items: list[str]) -> None:
    assert split_options(text) == items


def test_an_open_quote_is_refused() -> None:
    with pytest.raises(UsageError, match="a double quote is left open"):
        split_options('store="/a,ro')


@given(st.lists(VALUES, min_size=1))
def test_quoting_gives_back_any_values(values: list[str]) -> None:
    text = ",".join(quote_option("store", value) for value in values)
    assert split_options(text) == [f"store={value}" for value in values]


@given(st.text())
def test_any_text_is_read_or_refused_in_a_sentence(text: str) -> None:
    try:
        parse_options([text])
    except UsageError as error:
        assert str(error)


GENERIC = (
    "nofail,_netdev,noauto,auto,user,users,owner,group,ro,defaults,noatime,relatime,nodiratime,strictatime,nosuid,"
    "nodev,noexec,suid,dev,exec,sync,async,x-systemd.automount,x-systemd.requires-mounts-for=/a,x-gvfs-hide,"
    "comment=mine,user=me,default_permissions"
)


def test_generic_options_are_accepted_in_silence() -> None:
    parsed = parse_options([GENERIC])
    assert parsed.values == {}
    assert parsed.warnings == ()


def test_of_contradicting_flags_the_last_wins() -> None:
    assert parse_options(["nosuid,noexec,exec", "sync,noatime"]).mount_flags == ("noatime", "nosuid", "sync")
    assert parse_options(["noexec", "exec"]).mount_flags == ()
    assert parse_options(["exec", "noexec"]).mount_flags == ("noexec",)


@pytest.mark.parametrize(
    ("texts", "read_only"), [([], False), (["rw"], False), (["ro"], True), (["rw,ro"], True), (["ro", "rw"], False)]
)
def test_a_mount_may_be_written_to_unless_ro_is_the_last_word(texts: list[str], read_only: bool) -> None:
    parsed = parse_options(texts)
    assert (parsed.read_only, parsed.warnings) == (read_only, ())


def test_own_options_are_kept_and_the_last_wins() -> None:
    parsed = parse_options(["store=/a,log_level=debug", "store=/b,allow_other"])
    assert parsed.values == {"store": "/b", "log_level": "debug"}
    assert parsed.flags == {"allow_other"}


def test_the_two_names_of_the_budget_replace_one_another() -> None:
    assert parse_options(["store_size=1G,store_gb=2"]).values == {"store_gb": "2"}
    assert parse_options(["store_gb=2", "store_size=1G"]).values == {"store_size": "1G"}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("stor=/a", "store"),
        ("storesize=1G", "store_size"),
        ("allow-other", "allow_other"),
        ("nofial", "nofail"),
        ("readahead=1M", "read_ahead"),
    ],
)
def test_an_unknown_option_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UsageError, match=f"the nearest known one is '{nearest}'$"):
        parse_options([name])


def test_sloppy_makes_unknown_options_a_warning() -> None:
    parsed = parse_options(["stor=/a,store=/b"], sloppy=True)
    assert parsed.warnings == ("unknown option 'stor' is ignored",)
    assert parsed.values == {"store": "/b"}


@pytest.mark.parametrize("text", ["remount", "remount,ro", "ro,remount"])
@pytest.mark.parametrize("sloppy", [False, True])
def test_remount_is_refused(text: str, sloppy: bool) -> None:
    with pytest.raises(UsageError, match="remount is not supported: unmount"):
        parse_options([text], sloppy=sloppy)


@pytest.mark.parametrize("name", sorted(OWN_OPTIONS))
@pytest.mark.parametrize("end", ["", "="])
def test_an_option_without_its_value_shows_its_form(name: str, end: str) -> None:
    with pytest.raises(UsageError, match=f"^option '{name}' needs a value: {name}="):
        parse_options([name + end])


@pytest.mark.parametrize("text", ["ro=1", "allow_other=yes", "nosuid=", "nofail=x"])
def test_a_flag_with_a_value_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="takes no value"):
        parse_options([text])
