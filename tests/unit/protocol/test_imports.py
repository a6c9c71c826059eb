"""The room stands alone: it imports and works with pydantic and jiter, and does no I/O."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import nerve.protocol

ROOM = Path(nerve.protocol.__file__).parents[2]


def run(code: str, **environment: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(code)]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOM), **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_it_works_with_pydantic_and_jiter_alone() -> None:
    assert (
        run(
            """
            import importlib, pkgutil, sys

            class Absent:
                allowed = {"nerve", "pydantic", "pydantic_core", "jiter", "annotated_types",
                           "typing_extensions", "typing_inspection"}
                def find_spec(self, name, path=None, target=None):
                    root = name.partition(".")[0]
                    known = self.allowed | sys.stdlib_module_names
                    if root not in known and not root.startswith("_sysconfigdata"):
                        raise ModuleNotFoundError(name)

            sys.meta_path.insert(0, Absent())
            import nerve.protocol
            for found in pkgutil.walk_packages(nerve.protocol.__path__, "nerve.protocol."):
                if not found.name.endswith("__main__"):
                    importlib.import_module(found.name)
            assert "orjson" not in sys.modules and "rfc8785" not in sys.modules
            from nerve.protocol.canonical import canonical_bytes
            print(canonical_bytes({"b": 1.5, "a": [1, None]}).decode())
            """
        )
        == '{"a":[1,null],"b":1.5}'
    )


def test_it_imports_no_event_loop_and_no_socket() -> None:
    loaded = run(
        """
        import sys
        import pydantic, jiter, orjson
        pydantic.create_model("Loads", field=(int, ...))
        before = set(sys.modules)
        import nerve.protocol.envelope, nerve.protocol.events
        print(sorted({"asyncio", "socket", "sqlite3", "ssl"} & (set(sys.modules) - before)))
        """
    )
    assert loaded == "[]"


def test_a_skewed_build_is_simulated_by_the_environment() -> None:
    code = "from nerve.protocol.version import CURRENT; print(CURRENT)"
    assert run(code) == "1.0"
    assert run(code, NERVE_PROTOCOL_VERSION="1.1") == "1.1"
