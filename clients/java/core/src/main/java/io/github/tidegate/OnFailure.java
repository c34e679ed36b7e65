package io.github.tidegate;

/** The decision if the daemon does not answer. */
public enum OnFailure {
    /** The request starts. */
    ALLOW,
    /** The request is refused with status 503. */
    REFUSE
}
