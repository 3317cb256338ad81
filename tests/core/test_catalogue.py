"""Catalogues: members by name, and a package that loads its files."""

import sys
import types

import pytest

from calib_jax.core.catalogue import Catalogue, load_subpackage


@pytest.fixture
def pets():
    catalogue = Catalogue("pet")

    @catalogue.register("cat")
    def cat(*, lives=9):
        return ("cat", lives)

    @catalogue.register("dog")
    def dog():
        return ("dog",)

    return catalogue


def test_members_are_made_by_name(pets):
    assert pets.make("cat") == ("cat", 9)
    assert pets.make("cat", lives=7) == ("cat", 7)
    assert pets["dog"]() == ("dog",)


def test_it_is_a_mapping_in_alphabetical_order(pets):
    pets.register("ant")(lambda: "ant")
    assert list(pets) == ["ant", "cat", "dog"]
    assert len(pets) == 3
    assert "cat" in pets
    assert "cow" not in pets
    with pytest.raises(KeyError):
        pets["cow"]


def test_a_wrong_name_gets_the_nearest_right_one(pets):
    with pytest.raises(ValueError, match=r"pet must be one of .* got 'cta'; did you mean 'cat'\?"):
        pets.make("cta")
    with pytest.raises(ValueError, match=r"got 'elephant'\.$"):
        pets.make("elephant")


def test_the_nearest_name_is_that_without_regard_to_case_and_hyphens(pets):
    pets.register("guinea_pig")(lambda: None)
    for name, wanted in (("CAT", "cat"), ("Guinea-Pig", "guinea_pig")):
        with pytest.raises(ValueError, match=rf"did you mean '{wanted}'\?"):
            pets.make(name)


def test_it_prints_its_names(pets):
    assert repr(pets) == "Catalogue(pet: cat, dog)"


def test_a_wrong_option_gets_the_nearest_right_one(pets):
    with pytest.raises(TypeError, match=r"'cat' has no option 'live' .*did you mean 'lives'\?"):
        pets.make("cat", live=3)
    with pytest.raises(TypeError, match="it has none"):
        pets.make("dog", lives=3)


def test_a_name_is_given_once(pets):
    with pytest.raises(ValueError, match="the pet 'cat' exists already: choose"):
        pets.register("cat")(lambda: None)
    assert pets.make("cat") == ("cat", 9)
    pets.unregister("cat")
    assert list(pets) == ["dog"]
    pets.register("cat")(lambda: "another")
    assert pets.make("cat") == "another"
    with pytest.raises(ValueError, match=r"pet must be one of .* got 'cow'"):
        pets.unregister("cow")


def test_registering_hands_the_function_back(pets):
    def cow():
        return "moo"

    assert pets.register("cow")(cow) is cow


@pytest.fixture
def a_package(tmp_path, monkeypatch):
    """Return a function that makes a package of files and returns it as a module."""

    def make(**files):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        package = types.ModuleType("a_package_of_tests")
        package.__path__ = [str(tmp_path)]
        for name in ("", *(f".{name}" for name in files)):
            monkeypatch.setitem(sys.modules, f"a_package_of_tests{name}", package)
        for name in files:
            monkeypatch.delitem(sys.modules, f"a_package_of_tests.{name}")
        return package

    return make


def test_a_package_has_the_public_names_of_its_files(a_package):
    package = a_package(
        fish='__all__ = ["fish"]\ndef fish(): return 1\ndef _scales(): return 2',
        water="depth = 3",
    )
    names = load_subpackage(package)
    assert list(names) == ["fish"]
    assert names["fish"]() == 1  # the function, not the file of its name


def test_two_files_may_not_have_one_public_name(a_package):
    package = a_package(a='__all__ = ["x"]\nx = 1', b='__all__ = ["x"]\nx = 2')
    with pytest.raises(ImportError, match="two members named 'x'"):
        load_subpackage(package)
