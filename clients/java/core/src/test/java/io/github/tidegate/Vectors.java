package io.github.tidegate;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.math.BigInteger;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Reads the golden frames and answers of tests/vectors. */
public final class Vectors {
    private Vectors() {}

    public static List<JsonObject> read(String name) throws IOException {
        JsonArray all = JsonParser.parseString(Files.readString(Support.root().resolve("tests/vectors").resolve(name))).getAsJsonArray();
        return all.asList().stream().map(JsonElement::getAsJsonObject).toList();
    }

    public static String text(JsonObject of, String name) {
        JsonElement found = of.get(name);
        return found == null || found.isJsonNull() ? null : found.getAsString();
    }

    static byte[] bytes(JsonObject vector) {
        return HexFormat.of().parseHex(text(vector, "hex"));
    }

    static byte[] payload(byte[] frame) {
        return Arrays.copyOfRange(frame, 4, frame.length);
    }

    /** Converts the form of the JSON to values of the codec. */
    static Object real(JsonElement value) {
        if (value == null || value.isJsonNull()) {
            return null;
        } else if (value.isJsonArray()) {
            List<Object> list = new ArrayList<>();
            value.getAsJsonArray().forEach(one -> list.add(real(one)));
            return list;
        } else if (value.isJsonObject()) {
            JsonObject object = value.getAsJsonObject();
            if (object.size() == 1 && object.has("bin")) {
                return HexFormat.of().parseHex(object.get("bin").getAsString());
            }
            Map<String, Object> map = new LinkedHashMap<>();
            object.entrySet().forEach(entry -> map.put(entry.getKey(), real(entry.getValue())));
            return map;
        } else if (value.getAsJsonPrimitive().isBoolean()) {
            return value.getAsBoolean();
        } else if (value.getAsJsonPrimitive().isString()) {
            return value.getAsString();
        }
        BigInteger number = value.getAsBigInteger();
        return number.bitLength() > 63 ? number : (Object) number.longValue();
    }

    /** Returns the decision of a row of answers.json. */
    public static Decision decided(JsonObject row) {
        String reason = text(row, "reason"), domain = text(row, "domain");
        if (reason != null) {
            Verdict verdict = row.get("status").getAsInt() == 200 ? Verdict.ALLOW : Verdict.SHED;
            return Decision.without(Reason.valueOf(reason.toUpperCase()), verdict, domain);
        }
        return Decision.read(MessagePack.decode(payload(HexFormat.of().parseHex(text(row, "decision")))), domain, null, null, null);
    }
}
