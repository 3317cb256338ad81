"""Random and coverage-guided inputs for every reader of files that others wrote.

    python -m tests.fuzz --cases=10000 --out=experiments/results/fuzz.md

The command is coverage-guided where atheris is installed, which is no dependency of the project;
else it changes the bytes of whole files at random.
"""
