"""Tasks in Flask: an extension for applications and factories, the command `flask duetime work`.

tasks = FlaskTasks("shop")

@tasks.task
def cancel_unpaid(order_id: int) -> None: ...          # runs in an application context

def create_app():
    app = Flask(__name__)
    tasks.init_app(app)
    return app

Needs the extra `flask`.
"""

from duetime.flask.extension import FlaskTasks

__all__ = ["FlaskTasks"]
