import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Reads the commands of the test and writes the results, since the JDK has no JSON. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    static Map<String, Object> read(String line) {
        return map(new Json(line).value());
    }

    @SuppressWarnings("unchecked")
    static Map<String, Object> map(Object value) {
        return (Map<String, Object>) value;
    }

    private Object value() {
        switch (text.charAt(at)) {
            case '{': {
                var members = new LinkedHashMap<String, Object>();
                while (more('}')) {
                    String name = (String) value();
                    at++; // the colon
                    members.put(name, value());
                }
                return members;
            }
            case '[': {
                List<Object> all = new ArrayList<>();
                while (more(']')) {
                    all.add(value());
                }
                return all;
            }
            case '"':
                return string();
            default: {
                int from = at;
                while (at < text.length() && ",]}".indexOf(text.charAt(at)) < 0) {
                    at++;
                }
                String word = text.substring(from, at);
                return switch (word) {
                    case "true", "false" -> Boolean.valueOf(word);
                    case "null" -> null;
                    default -> word.matches("-?\\d+") ? (Object) Long.valueOf(word) : Double.valueOf(word);
                };
            }
        }
    }

    /** Skips the bracket or the comma before a value; false after the last one. */
    private boolean more(char end) {
        if (text.charAt(at) == end || text.charAt(at + 1) == end) {
            at += text.charAt(at) == end ? 1 : 2;
            return false;
        }
        at++;
        return true;
    }

    private String string() {
        var out = new StringBuilder();
        while (text.charAt(++at) != '"') {
            char c = text.charAt(at);
            if (c == '\\') {
                c = text.charAt(++at);
                if (c == 'u') {
                    c = (char) Integer.parseInt(text.substring(at + 1, at + 5), 16);
                    at += 4;
                } else {
                    int known = "nrtbf".indexOf(c);
                    c = known < 0 ? c : "\n\r\t\b\f".charAt(known);
                }
            }
            out.append(c);
        }
        at++;
        return out.toString();
    }

    static String write(Object value) {
        if (value instanceof Map<?, ?> members) {
            var parts = members.entrySet().stream().map(one -> write(one.getKey().toString()) + ":" + write(one.getValue()));
            return "{" + String.join(",", parts.toList()) + "}";
        } else if (value instanceof List<?> all) {
            return "[" + String.join(",", all.stream().map(Json::write).toList()) + "]";
        } else if (value == null || value instanceof Number || value instanceof Boolean) {
            return String.valueOf(value);
        }
        var out = new StringBuilder("\"");
        value.toString().chars().forEach(c -> out.append(c < ' ' || c > '~' || c == '"' || c == '\\'
                ? String.format("\\u%04x", c) : String.valueOf((char) c)));
        return out.append('"').toString();
    }
}
