"""Catalogues: members by name, and a package that loads its files."""

import pytest

from calib_jax.core.catalogue import Catalogue


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
