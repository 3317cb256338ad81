"""The output of `experiments.data --show`, read back."""

from calib_jax import data
from tests.experiments.processes import finish, refused


def test_the_binary_shows_an_example_of_each_part():
    output = finish("data", "--show=digits", "--example=400")
    lines = output.splitlines()
    label = data.digits().train.labels[400]
    assert lines[lines.index("train, example 400 of 500") + 3] == f"  label     {label}"
    assert "validation: has 297 examples, numbered from 0" in lines
    output = refused("data", "--show=digit")
    assert output == "error: no data set is called 'digit'; did you mean 'digits'?\n"
    output = refused("data", "--show=digits", "--example=1000")
    assert output == "error: --example=1000 is in no part of digits: give at most 999.\n"
