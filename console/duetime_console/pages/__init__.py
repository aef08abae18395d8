"""The pages. A module has its routes in `ROUTES`; their endpoints return `rendering.page`."""
