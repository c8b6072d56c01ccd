"""The operator that runs memory stores on Kubernetes and binds agents to them.

Layers, each importing only what stands below it: ``__main__`` > ``handlers`` > ``reconcile`` > ``cluster`` >
(``desired`` | ``status``) > ``crd`` > ``settings`` > ``names``. ``desired`` and ``status`` are pure.
"""
