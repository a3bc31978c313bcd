"""The daemon that Kineto asks for windows where a job was started with ``KINETO_USE_DAEMON``."""
