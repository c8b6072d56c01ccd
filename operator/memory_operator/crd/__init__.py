"""A typed view of our API objects; mirrors `crds/*.yaml`, whose rules are checked here once more."""
