"""The tasks of the Flask application of FLASK_APP, for workers: `duetime work duetime.flask.worker:app`.

Without FLASK_APP the application is found as by the command `flask`: in wsgi.py or app.py.
"""

import os

from flask.cli import ScriptInfo

from duetime.client.errors import InvalidArgument
from duetime.flask.commands import APP_VARIABLE
from duetime.flask.extension import EXTENSION

_flask_app = ScriptInfo(app_import_path=os.environ.get(APP_VARIABLE)).load_app()
if EXTENSION not in _flask_app.extensions:
    raise InvalidArgument.of("app", f"{_flask_app.name} has no tasks: call init_app(app) of FlaskTasks")
app = _flask_app.extensions[EXTENSION]
