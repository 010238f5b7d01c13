"""``python -m cann_host``: where the software CANN is and how it is set."""

from __future__ import annotations

from cann_host import library, root, settings


def main() -> None:
    built = "built" if library().exists() else "not built; run `make build`"
    print(f"cann_host in {root()} ({built})")
    width = max(map(len, settings()))
    for setting in settings().values():
        print(f"  {setting.name:{width}}  {setting.value}\n  {'':{width}}  {setting.meaning}")


if __name__ == "__main__":
    main()
