"""Everything that can go wrong, as one tree.

PolychoirError
|- InvalidRequest          the caller's fault; always names the field
|  |- MissingValue         a required field is absent or null
|  |- UnknownField         a near miss of one of our field names
|  |- UnspeakableText      nothing in the text that this model can say
|  |- UnsupportedByModel   a known field or value that this model cannot honour
|  |- VoiceNotFound        no such voice
|  |- InvalidAudio         a reference clip that cannot be used
|  `- TextTooLong
|- ModelNotFound           the request names a model that is not served
|- NotFound                a resource's own URL does not exist
|- BodyTooLarge
|- Overloaded              full; carries retry_after_s
|- Unavailable             loading, draining or a lost worker; carries retry_after_s
|- DeadlineExceeded        dropped before running, or cut
|- Aborted                 the consumer went away
|- SettingError            a setting that cannot be used; stops the start
|- ModelLoadError          a checkpoint that cannot be used; stops the start
`- InternalError           a bug or a broken device; the client sees no internals
   `- DeviceLost           the device answers nothing more in this process

`message` may be shown to a client, except that of InternalError, whose cause is logged and replaced.
HTTP statuses are not known here: one table in `server/errors.py` maps `code` to them.
"""

from __future__ import annotations


class PolychoirError(Exception):
    """Base of the tree. `code` is the stable machine-readable word of the public contract."""

    code: str = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequest(PolychoirError):
    """A value the caller sent cannot be used; `param` names the field."""

    code = "invalid_value"


class MissingValue(InvalidRequest):
    code = "missing_value"


class UnknownField(InvalidRequest):
    code = "unknown_field"


class UnspeakableText(InvalidRequest):
    """Nothing in the text can be said by this model; raised before any synthesis."""

    code = "unspeakable_text"

    def __init__(self, message: str, *, param: str = "input") -> None:
        super().__init__(message, param=param)


class UnsupportedByModel(InvalidRequest):
    code = "unsupported_by_model"


class VoiceNotFound(InvalidRequest):
    code = "voice_not_found"

    def __init__(self, message: str, *, param: str = "voice") -> None:
        super().__init__(message, param=param)


class InvalidAudio(InvalidRequest):
    code = "invalid_audio"

    def __init__(self, message: str, *, param: str = "ref_audio") -> None:
        super().__init__(message, param=param)


class TextTooLong(InvalidRequest):
    code = "text_too_long"

    def __init__(self, message: str, *, param: str = "input") -> None:
        super().__init__(message, param=param)


class ModelNotFound(PolychoirError):
    code = "model_not_found"

    def __init__(self, message: str, *, param: str = "model") -> None:
        super().__init__(message, param=param)


class NotFound(PolychoirError):
    code = "not_found"


class BodyTooLarge(PolychoirError):
    code = "body_too_large"


class _Retryable(PolychoirError):
    """An error that passes by itself; `retry_after_s` is the honest guess of when."""

    def __init__(self, message: str, *, retry_after_s: float, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.retry_after_s = retry_after_s


class Overloaded(_Retryable):
    code = "overloaded"


class Unavailable(_Retryable):
    """`code` is one of loading, draining, worker_lost."""

    def __init__(self, message: str, *, code: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.code = code


class CannotBatch(PolychoirError):
    """A plan of several rows that the model can only run one by one. Never sent to a client."""

    code = "internal_error"


class DeadlineExceeded(PolychoirError):
    code = "deadline_exceeded"


class Aborted(PolychoirError):
    """Never sent: the client that would read it has gone. Logged as 499."""

    code = "client_closed"


class SettingError(PolychoirError):
    code = "invalid_setting"


class ModelLoadError(PolychoirError):
    code = "model_load_error"


class InternalError(PolychoirError):
    """This is a bug, or a device that broke. The text is for the log alone."""

    code = "internal_error"


class DeviceLost(InternalError):
    """The device is unusable until this process ends. A runner raises it from `submit` or `poll`, or gives it
    as the error of a plan or a row: the engine then ends as a whole."""
