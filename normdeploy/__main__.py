"""``python -m normdeploy`` is ``normdeploy``; so that ``torchrun -m normdeploy train RECIPE`` works."""

from normdeploy.cli import main

if __name__ == "__main__":
    main()
