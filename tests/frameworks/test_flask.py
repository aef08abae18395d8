"""duetime.flask: tasks in the context of their application, and the command `flask duetime work`."""

import subprocess
import sys
from pathlib import Path

import pytest
from duetime import InvalidArgument, Middleware
from duetime.flask import FlaskTasks
from flask import Flask, current_app, g

from tests.docs.programs import DEADLINE_S, cluster_of_today, running

SHOP = """
from flask import Flask, current_app
from duetime.flask import FlaskTasks

tasks = FlaskTasks("shop")


@tasks.task
def pack(item: str) -> None:
    print(f"{current_app.config['PLACE']}: {item}", flush=True)


@tasks.task(process=True)
def weigh(item: str) -> None:
    print(f"{current_app.config['PLACE']} in a process: {item}", flush=True)


def create_app(place="here"):
    app = Flask(__name__)
    app.config["PLACE"] = place
    tasks.init_app(app)
    return app
"""


class Stall:
    """An application with tasks, and their notes."""

    def __init__(self) -> None:
        self.notes: list[object] = []
        self.tasks = FlaskTasks("stall", middleware=[Noting(self.notes)])
        self.app = self.make("one")

        @self.tasks.task
        def pack(item: str) -> None:
            self.notes.append((current_app.name, item, g.get("user")))
            if item == "bad":
                raise ValueError(item)

        @self.tasks.task
        async def pack_async(item: str) -> None:
            self.notes.append((current_app.name, item, g.get("user")))

        self.pack, self.pack_async = pack, pack_async

    def make(self, name: str) -> Flask:
        app = Flask(name)
        self.tasks.init_app(app)
        app.teardown_appcontext(lambda error: self.notes.append(("end", type(error).__name__)))
        return app


class Noting(Middleware):
    def __init__(self, notes: list[object]) -> None:
        self._notes = notes

    def before(self, message: object) -> None:
        self._notes.append(current_app.name)


@pytest.fixture
def stall() -> Stall:
    return Stall()


def test_task_runs_in_a_context_that_ends_with_it(stall: Stall) -> None:
    with stall.tasks.eager():
        stall.pack.send("tea")
        with pytest.raises(ValueError, match="bad"):
            stall.pack.send("bad")
    assert stall.notes == [
        *("one", ("one", "tea", None), ("end", "NoneType")),
        *("one", ("one", "bad", None), ("end", "ValueError")),
    ]
    assert not current_app


async def test_coroutine_runs_in_a_context_too(stall: Stall) -> None:
    with stall.tasks.eager():
        await stall.pack_async.asend("tea")
    assert stall.notes == ["one", ("one", "tea", None), ("end", "NoneType")]


def test_task_of_a_request_has_a_context_of_its_own(stall: Stall) -> None:
    other = stall.make("two")
    with stall.tasks.eager():
        with stall.app.app_context():
            g.user = "ann"
            stall.pack.send("tea")
        stall.pack.send("milk")
    assert ("one", "tea", None) in stall.notes
    assert ("two", "milk", None) in stall.notes
    assert stall.tasks.flask_app() is other


def test_configuration_has_precedence() -> None:
    tasks = FlaskTasks("stall", server="near:1")
    app = Flask("one")
    app.config |= {"DUETIME_SERVER": "far:2", "DUETIME_TOKEN": "t"}
    tasks.init_app(app)
    assert "far:2" in repr(tasks)
    with pytest.raises(InvalidArgument, match="token"):
        assert tasks.producer
    tasks.init_app(Flask("two"))
    assert "near:1" in repr(tasks)
    assert tasks.producer


def test_application_has_one_extension_and_tasks_need_one(stall: Stall) -> None:
    stall.tasks.init_app(stall.app)
    with pytest.raises(InvalidArgument, match="app: one has the tasks of stall already"):
        FlaskTasks("other", stall.app)
    lonely = FlaskTasks("lonely")

    @lonely.task
    def pack() -> None: ...

    with lonely.eager(), pytest.raises(InvalidArgument, match=r"no Flask application: call init_app\(app\)"):
        pack.send()


def test_command_runs_tasks_in_the_context_of_the_factory(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    command = [sys.executable, "-m", "flask", "--app", "shop:create_app('there')", "duetime", "work"]
    with cluster_of_today() as cluster:
        tasks = FlaskTasks("shop", server=cluster.address)
        with tasks:
            for task in ("pack", "weigh"):
                tasks.producer.send("shop", {"item": "tea"}, tags=task)
        with running([*command, "--processes", "2"], cluster, tmp_path) as worker:
            worker.wait_for("there: tea")
            worker.wait_for("there in a process: tea")
            assert worker.stop() == 0


def test_command_has_the_options_of_work_and_names_a_missing_extension(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "bare.py").write_text("from flask import Flask\nfrom duetime.flask.commands import duetime\n")
    with (tmp_path / "bare.py").open("a") as bare:
        bare.write("app = Flask('bare')\napp.cli.add_command(duetime)\n")

    def work(app: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "flask", "--app", app, "duetime", "work", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    assert "--time-limit" in work("shop", "--help").stdout
    wrong = work("shop", "--drain", "soon")
    assert (wrong.returncode, "--drain 'soon' is not a length" in wrong.stderr) == (2, True)
    missing = work("bare")
    assert missing.returncode == 2
    assert "InvalidArgument: app: bare has no tasks: call init_app(app) of FlaskTasks" in missing.stderr
    assert len(missing.stderr.splitlines()) == 1
