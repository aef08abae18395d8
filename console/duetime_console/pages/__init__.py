"""The pages. A module has its routes in `ROUTES`, whose endpoints answer by `rendering.page`."""
