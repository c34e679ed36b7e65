"""Names in a Prometheus query, compared with a scrape. Parses only names and labels of PromQL."""

import re

STRING = r'"(?:[^"\\]|\\.)*"'
SERIES = re.compile(rf"([a-zA-Z_:][\w:]*)(?:{{((?:{STRING}|[^}}\"])*)}})?")
LABEL = re.compile(rf"(\w+)=({STRING})")
MATCHER = re.compile(rf"(\w+)\s*(=~|!~|!=|=)\s*({STRING})")
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
OF_PROMETHEUS = {"job", "instance"}  # of its targets, regardless of their content


def scraped(text):
    """Maps names of metrics to the labels of their series in a scrape."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels = SERIES.match(line).groups()
            found.setdefault(name, []).append({key: value[1:-1] for key, value in LABEL.findall(labels or "")})
    return found


def selectors(query):
    """Returns each metric of a query with its matchers. Functions and keywords do not match."""
    bare = GROUPING.sub(" ", query)
    for name, matchers in SERIES.findall(re.sub(r"\[[^]]*\]", " ", bare)):
        if name.startswith("tidegate_") or ":" in name:
            yield name, [(label, how, value[1:-1]) for label, how, value in MATCHER.findall(matchers)]


def faults(query, known):
    """Returns names in the query that `known` lacks: metrics, labels, values of labels."""
    labels = set(OF_PROMETHEUS)
    for name, matchers in selectors(query):
        if name not in known:
            yield f"no metric {name}"
            continue
        series = known[name]
        labels |= {label for one in series for label in one}
        for label, how, value in matchers:
            if label in OF_PROMETHEUS:
                continue
            if not any(label in one for one in series):
                yield f"{name} has no label {label}"
            elif not any(matches(one.get(label, ""), how, value) for one in series):
                yield f"no series of {name} has {label}{how}{value}"
    for named in GROUPING.findall(query):
        yield from (f"nothing here has a label {label}" for label in re.findall(r"\w+", named) if label not in labels)


def matches(value, how, wanted):
    is_it = value == wanted if how in ("=", "!=") else re.fullmatch(wanted, value) is not None
    return is_it == (how in ("=", "=~"))
