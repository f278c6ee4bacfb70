"""Makes a real process of a federation behave badly, without a line for that in the program: Python imports this by itself.

KITHKIN_ODD has words ROUND:WHAT, or ROUND:WHAT:CLIENT for what is sent to one client alone.
"""

import importlib.abc
import importlib.util
import os
import sys
import time

WATCHED = {"kithkin.network.wire", "kithkin.network.site"}


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in WATCHED:
            return None
        WATCHED.discard(name)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            (spoil_wire if name.endswith("wire") else spoil_site)(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def asked(round, client=None):
    for word in os.environ["KITHKIN_ODD"].split():
        at, what, *who = word.split(":")
        if int(at) == round and (not who or int(who[0]) == client):
            yield what


def spoil_wire(wire):
    seal = wire.Wire.seal

    def odd(self, note, models=()):
        import json

        import numpy as np
        from flwr.app import ArrayRecord, ConfigRecord, RecordDict

        content = seal(self, note, models)
        arrays = content.array_records["models"].to_numpy_ndarrays()
        for what in asked(note.get("round"), note.get("client")) if arrays and "parcels" in note else ():
            stamp = content.config_records["kithkin"]
            text, sha = str(stamp["note"]), str(stamp["sha256"])
            changed = [a.copy() for a in arrays]
            if what in ("nan", "altered"):
                changed[0][0] = np.nan if what == "nan" else changed[0][0] + 1
            elif what == "norm":
                changed[0] *= 1e7
            elif what in ("size", "cut"):
                changed[0] = changed[0][:-7]
            elif what == "dtype":
                changed[0] = changed[0].astype(np.float64)
            else:
                continue
            honest = what in ("altered", "cut")  # the hash is that of what was there before
            sha = sha if honest else wire.digest(text, changed)
            json.loads(text)
            stamp = ConfigRecord({"note": text, "sha256": sha})
            content = RecordDict({"kithkin": stamp, "models": ArrayRecord(changed)})
        return content

    wire.Wire.seal = odd


def spoil_site(site):
    visit = site.Site._visit

    def odd(self, brief, *more):
        for what in asked(brief.round):
            if what == "hang":
                (self.state / "hanging").write_text("")
                time.sleep(600)
            elif what.startswith("slow"):
                time.sleep(float(what[4:]))
            elif what == "full":
                import resource

                resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        return visit(self, brief, *more)

    site.Site._visit = odd


if os.environ.get("KITHKIN_ODD"):
    sys.meta_path.insert(0, Finder())
