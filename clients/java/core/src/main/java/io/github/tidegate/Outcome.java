package io.github.tidegate;

/** How the work under a lease ended. */
public enum Outcome {
    /** It succeeded. */
    OK,
    /** It failed. */
    ERROR,
    /** It did not end, or timed out. */
    DROPPED
}
