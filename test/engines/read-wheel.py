"""Takes some files out of the wheels of a package's releases, over HTTP and in parts.

argv: a folder, the package, its versions with commas between, and patterns of paths. Each release gets a folder of its
version with a mark in it; one that has it is left alone. pip finds the wheels and reads their parts: its configuration
says where from, through what and trusting whom.
"""

import pathlib
import re
import sys
import zipfile

from pip._internal.commands.download import DownloadCommand
from pip._internal.network.lazy_wheel import LazyZipOverHTTP

folder, package, versions, *patterns = sys.argv[1:]


def to_regex(pattern: str) -> str:
    parts = re.split(r"(\*\*/|\*)", pattern)
    meaning = {"**/": r"(?:[^/]+/)*", "*": r"[^/]*"}
    return "".join(meaning.get(part, re.escape(part)) for part in parts)


wanted = re.compile("|".join(to_regex(pattern) for pattern in patterns))
mark = "\n".join(patterns)


def is_ready(version: str) -> bool:
    path = pathlib.Path(folder) / version / ".ready"
    return path.exists() and path.read_text() == mark


missing = [each for each in versions.split(",") if not is_ready(each)]
if not missing:
    sys.exit(0)

command = DownloadCommand("download", "")
options, _ = command.parse_args([])
with command.main_context():
    session = command._build_session(options)
    finder = command._build_package_finder(options=options, session=session)
    found = {}
    # Of whichever platform that runs here: the sources are the same.
    for candidate in finder.find_all_candidates(package):
        if candidate.link.is_wheel:
            found.setdefault(str(candidate.version), candidate.link)
    for version in missing:
        if version not in found:
            print(f"{package} {version} has no wheel here")
            continue
        target = pathlib.Path(folder) / version
        with zipfile.ZipFile(LazyZipOverHTTP(found[version].url_without_fragment, session)) as wheel:
            names = [name for name in wheel.namelist() if wanted.fullmatch(name)]
            for name in names:
                path = target / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(wheel.read(name))
        # What is imported by mistake says so.
        (target / package / "__init__.py").write_text('raise SystemExit("imported")\n')
        (target / ".ready").write_text(mark)
        print(f"{package} {version}: {len(names)} files")
