"""`make audit ADVISORIES=DIR`: known vulnerabilities of the pinned and installed versions, without a network.

DIR is a checkout of https://github.com/pypa/advisory-database, the data of pip-audit; what is newer than the
checkout is not known. Status 1 when a version is affected.
"""

import re
import sys
from importlib.metadata import distributions
from pathlib import Path

import yaml
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[2]


def affected(advisory: dict, version: str) -> bool:
    """True by the versions that an advisory lists, or by the ranges between `introduced` and `fixed`."""
    for one in advisory.get("affected", ()):
        if version in one.get("versions", ()):
            return True
        for span in one.get("ranges", ()):
            inside = False
            for event in span["events"] if span["type"] == "ECOSYSTEM" else ():
                ((kind, at),) = event.items()
                begun, here = Version(at), Version(version)
                if kind == "introduced" and here >= begun:
                    inside = True
                if (kind == "fixed" and here >= begun) or (kind == "last_affected" and here > begun):
                    inside = False
            if inside:
                return True
    return False


def main(database: Path) -> int:
    text = (ROOT / "constraints.txt").read_text()
    versions = set(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))
    versions |= {(one.name, one.version) for one in distributions()}
    advisories, found = 0, []
    for name, version in sorted(versions):
        folder = database / "vulns" / re.sub(r"[-_.]+", "-", name).lower()
        for file in sorted(folder.glob("*.yaml")):
            advisory = yaml.safe_load(file.read_text())
            advisories += 1
            try:
                if not advisory.get("withdrawn") and affected(advisory, version):
                    found.append(f"{name} {version}: {advisory['id']}: {advisory['details'][:200]}")
            except InvalidVersion as error:
                found.append(f"{name} {version}: {advisory['id']}: {error}")
    print(*found, sep="\n")
    print(f"{len(versions)} versions, {advisories} advisories of their packages, {len(found)} affected")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
