"""A model hub on 127.0.0.1: the requests that huggingface_hub makes, with files in a folder.

    python tests/hub/fake_hub.py FOLDER

prints its address and serves until it is stopped. Tests change what it lists and sends.
"""

import base64
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

LARGE = (".h5", ".safetensors", ".parquet")
"""Suffixes of the files that are uploaded as large ones."""
READ = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
API = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(\w+)(?:/(.+))?)?")
BATCH = re.compile(r"/(datasets/)?([^/]+/[^/]+)\.git/info/lfs/objects/batch")


class Problem(Exception):
    """An answer other than 200."""

    def __init__(self, status, code="", text="", url=""):
        self.status = status
        self.code = code
        self.answer = {"error": text, "url": url}


def allow(_method, _path):
    """Answer a request as usual."""


class FakeHub:
    """Repositories, what was asked, and the faults that tests set."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.lock = threading.Lock()
        self.repositories = {}
        self.asked = []
        self.commits = 0
        self.may_write = True
        self.may_read = True
        self.listed = lambda entries: entries
        self.sent = {}
        """Change a listing; bytes sent instead of a file's, by path."""
        self.next_page = lambda url: None
        """Return the address of the page after one of a listing."""
        self.bodies = {}
        """Sent instead of an answer, by a part of the path."""
        self.etag = _oid
        """Return the ETag of a file."""
        self.says_length = True
        self.sent_bytes = 0
        self.before = allow
        """Called with each request; may raise Problem."""
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        # each test waits this long for the server to notice that it is closed
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def killed(self, command, reached, counted):
        """Kill a process at its first request after as many of those that count."""
        asked = []
        at_limit = threading.Event()

        def stop(method, path):
            if counted(method, path):
                asked.append(path)
            if len(asked) > reached:
                at_limit.set()
                time.sleep(1)  # the process is killed meanwhile
                raise Problem(500)

        self.before = stop
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=dict(os.environ))
        assert at_limit.wait(60)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        self.before = allow

    def files(self, kind, name, branch="main"):
        """Return the content of a branch by path."""
        repository = self.repositories[kind, name]
        tree = repository["trees"][repository["branches"][branch]]
        return {path: self.content(entry) for path, entry in tree.items()}

    def content(self, entry):
        return (self.folder / entry["stored"]).read_bytes()

    def put(self, kind, name, files, branch="main"):
        """Commit files from outside, by path; None deletes one."""
        key = kind, name
        self.repositories.setdefault(key, _new_repository(self, private=False))
        entries = {p: None if c is None else self.entry(p, c) for p, c in files.items()}
        return self.commit(self.repositories[key], branch, entries)

    def entry(self, path, content):
        sha = hashlib.sha256(content).hexdigest()
        (self.folder / sha).write_bytes(content)
        if path.endswith(LARGE):
            return {"size": len(content), "lfs": sha, "stored": sha}
        git = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
        return {"size": len(content), "oid": git, "stored": sha}

    def commit(self, repository, branch, entries):
        self.commits += 1
        sha = hashlib.sha1(f"commit {self.commits}".encode()).hexdigest()
        tree = repository["trees"][repository["branches"][branch]] | entries
        repository["trees"][sha] = {p: e for p, e in tree.items() if e is not None}
        repository["branches"][branch] = sha
        return sha


def _new_repository(hub, *, private):
    repository = {"private": private, "branches": {"main": "0" * 40}, "trees": {"0" * 40: {}}}
    hub.commit(repository, "main", {".gitattributes": hub.entry(".gitattributes", b"*.h5 lfs\n")})
    return repository


class _Handler(BaseHTTPRequestHandler):
    hub = None
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise a body waits 40 ms for the ACK of its headers

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.handle_with(self.get)

    do_HEAD = do_GET

    def do_POST(self):
        self.handle_with(self.post)

    def do_PUT(self):
        self.handle_with(self.put)

    def handle_with(self, act):
        path = unquote(urlsplit(self.path).path)
        try:
            self.hub.asked.append((self.command, path))
            self.hub.before(self.command, path)
            act(path)
        except Problem as problem:
            with suppress(BrokenPipeError, ConnectionResetError):
                self.answer(problem.answer, problem.status, problem.code)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def answer(self, value, status=200, code="", link=None):
        body = json.dumps(value).encode()
        for part, instead in self.hub.bodies.items():
            body = instead if part in self.path else body
        self.send_response(status)
        if status != 200:  # what was sent is not read
            self.send_header("Connection", "close")
        if code:
            self.send_header("X-Error-Code", code)
        if link:
            self.send_header("Link", f'<{link}>; rel="next"')
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def body(self):
        return self.rfile.read(int(self.headers["Content-Length"]))

    def repository(self, datasets, name):
        kind = "dataset" if datasets else "model"
        try:
            if self.hub.may_read:
                return self.hub.repositories[kind, name]
        except KeyError:
            pass
        raise Problem(404, "RepoNotFound")

    def tree(self, repository, revision):
        commit = repository["branches"].get(revision, revision)
        if commit not in repository["trees"]:
            raise Problem(404, "RevisionNotFound")
        return commit, repository["trees"][commit]

    # --- reading ---

    def get(self, path):
        if match := READ.fullmatch(path):
            return self.send_file(*match.groups())
        if not (match := API.fullmatch(path)):
            raise Problem(404)
        kind, name, action, rest = match.groups()
        repository = self.repository(kind == "datasets", name)
        revision = (rest or "main").removesuffix("/")
        commit, tree = self.tree(repository, revision)
        if action == "tree":
            listed = self.hub.listed([_as_listed(p, e) for p, e in tree.items()])
            return self.answer(listed, link=self.hub.next_page(self.hub.address + self.path))
        listing = {"_id": "0", "id": name, "sha": commit, "private": repository["private"]}
        counts = {"downloads": 0, "likes": 0, "tags": [], "siblings": []}
        return self.answer(listing | counts | {"disabled": False, "gated": False})

    def send_file(self, datasets, name, revision, path):
        repository = self.repository(datasets, name)
        commit, tree = self.tree(repository, revision)
        if path not in tree:
            raise Problem(404, "EntryNotFound")
        entry = tree[path]
        instead = self.hub.sent.get(path)
        stored = self.hub.folder / entry["stored"]
        size = stored.stat().st_size if instead is None else len(instead)
        self.send_response(200)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("ETag", f'"{self.hub.etag(entry)}"')
        if self.hub.says_length:
            self.send_header("Content-Length", str(size))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return
        if instead is not None:
            for start in range(0, len(instead), 1 << 20):
                self.wfile.write(instead[start : start + (1 << 20)])
                self.hub.sent_bytes += 1 << 20
            return
        with stored.open("rb") as file:
            shutil.copyfileobj(file, self.wfile, 1 << 20)

    # --- writing ---

    def post(self, path):
        if path == "/api/validate-yaml":
            self.body()
            return self.answer({"errors": [], "warnings": []})
        if not self.hub.may_write:
            raise Problem(403, "", "You have read access only")
        if path == "/api/repos/create":
            return self.create()
        if BATCH.fullmatch(path):
            return self.batch()
        kind, name, action, revision = API.fullmatch(path).groups()
        repository = self.repository(kind == "datasets", name)
        if action == "branch":
            self.body()
            repository["branches"].setdefault(revision, repository["branches"]["main"])
            return self.answer({})
        if action == "preupload":
            return self.preupload(self.tree(repository, revision)[1])
        return self.commit(repository, revision, f"{self.hub.address}/{kind}/{name}")

    def create(self):
        asked = json.loads(self.body())
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        key = asked.get("type", "model"), name
        with self.hub.lock:
            if key in self.hub.repositories:
                raise Problem(
                    409, "", "You already created this repo", f"{self.hub.address}/{name}"
                )
            private = asked.get("private") or asked.get("visibility") == "private"
            self.hub.repositories[key] = _new_repository(self.hub, private=bool(private))
        return self.answer({"url": f"{self.hub.address}/{name}"})

    def preupload(self, tree):
        files = json.loads(self.body())["files"]
        return self.answer(
            {
                "files": [
                    {
                        "path": file["path"],
                        "shouldIgnore": False,
                        "oid": _oid(tree.get(file["path"], {})),
                        "uploadMode": "lfs" if file["path"].endswith(LARGE) else "regular",
                    }
                    for file in files
                ]
            }
        )

    def batch(self):
        objects = []
        for requested in json.loads(self.body())["objects"]:
            upload = {"upload": {"href": f"{self.hub.address}/lfs/{requested['oid']}"}}
            is_stored = (self.hub.folder / requested["oid"]).exists()
            objects.append(requested if is_stored else requested | {"actions": upload})
        return self.answer({"transfer": "basic", "objects": objects})

    def put(self, path):
        oid = path.removeprefix("/lfs/")
        length = int(self.headers["Content-Length"])
        partial = self.hub.folder / f"{oid}.{threading.get_ident()}"
        hasher = hashlib.sha256()
        with partial.open("wb") as file:
            while length > 0:
                part = self.rfile.read(min(length, 1 << 20))
                if not part:
                    raise BrokenPipeError
                hasher.update(part)
                file.write(part)
                length -= len(part)
        if hasher.hexdigest() != oid:
            raise Problem(400, "", "the bytes do not match their digest")
        partial.replace(self.hub.folder / oid)
        return self.answer({})

    def commit(self, repository, branch, page):
        lines = [json.loads(line) for line in self.body().splitlines()]
        entries = {}
        parent = None
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                parent = value.get("parentCommit")
            elif line["key"] == "file":
                content = base64.b64decode(value["content"])
                entries[value["path"]] = self.hub.entry(value["path"], content)
            elif line["key"] == "lfsFile":
                sha = value["oid"]
                entries[value["path"]] = {"size": value["size"], "lfs": sha, "stored": sha}
            else:
                entries[value["path"]] = None
        with self.hub.lock:
            if parent not in (None, repository["branches"].get(branch)):
                raise Problem(412, "", "A commit has happened since. Please refresh and try again")
            sha = self.hub.commit(repository, branch, entries)
        url = f"{page.replace('/models/', '/')}/commit/{sha}"
        return self.answer({"success": True, "commitOid": sha, "commitUrl": url})


def _oid(entry):
    return entry.get("lfs") or entry.get("oid")


def _as_listed(path, entry):
    common = {"type": "file", "path": path, "size": entry["size"]}
    common["oid"] = entry.get("oid", "0" * 40)
    if "lfs" in entry:
        common["lfs"] = {"size": entry["size"], "oid": entry["lfs"], "pointerSize": 130}
    return common


if __name__ == "__main__":
    served = FakeHub(sys.argv[1])
    print(served.address, flush=True)
    threading.Event().wait()
