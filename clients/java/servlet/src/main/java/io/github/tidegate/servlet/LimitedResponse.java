package io.github.tidegate.servlet;

import io.github.tidegate.Decision;
import io.github.tidegate.Guard;
import jakarta.servlet.ServletOutputStream;
import jakarta.servlet.WriteListener;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.HttpServletResponseWrapper;
import java.io.IOException;
import java.io.PrintWriter;

/** A response that gets limit headers before its first byte, when its status is known. */
final class LimitedResponse extends HttpServletResponseWrapper {
    private final Guard<?> guard;
    private final Decision decision;
    private boolean added;
    private ServletOutputStream stream;
    private PrintWriter writer;

    LimitedResponse(HttpServletResponse response, Guard<?> guard, Decision decision) {
        super(response);
        this.guard = guard;
        this.decision = decision;
    }

    /** Adds limit headers once; the application's own stay. */
    void addFields() {
        if (!added && !isCommitted()) {
            guard.fields(decision, getStatus(), this::containsHeader).forEach(this::setHeader);
        }
        added = true;
    }

    @Override
    public void sendError(int status) throws IOException {
        setStatus(status);
        addFields();
        super.sendError(status);
    }

    @Override
    public void sendError(int status, String message) throws IOException {
        setStatus(status);
        addFields();
        super.sendError(status, message);
    }

    @Override
    public void sendRedirect(String location) throws IOException {
        added = true;
        super.sendRedirect(location);
    }

    @Override
    public void flushBuffer() throws IOException {
        addFields();
        super.flushBuffer();
    }

    @Override
    public void reset() {
        super.reset();
        added = false;
    }

    @Override
    public ServletOutputStream getOutputStream() throws IOException {
        if (stream == null) {
            stream = new Stream(super.getOutputStream());
        }
        return stream;
    }

    @Override
    public PrintWriter getWriter() throws IOException {
        if (writer == null) {
            writer = new Writer(super.getWriter());
        }
        return writer;
    }

    private final class Stream extends ServletOutputStream {
        private final ServletOutputStream inner;

        Stream(ServletOutputStream inner) {
            this.inner = inner;
        }

        @Override
        public void write(int octet) throws IOException {
            addFields();
            inner.write(octet);
        }

        @Override
        public void write(byte[] bytes, int from, int length) throws IOException {
            addFields();
            inner.write(bytes, from, length);
        }

        @Override
        public void flush() throws IOException {
            addFields();
            inner.flush();
        }

        @Override
        public void close() throws IOException {
            addFields();
            inner.close();
        }

        @Override
        public boolean isReady() {
            return inner.isReady();
        }

        @Override
        public void setWriteListener(WriteListener listener) {
            inner.setWriteListener(listener);
        }
    }

    private final class Writer extends PrintWriter {
        Writer(PrintWriter inner) {
            super(inner);
        }

        @Override
        public void write(int character) {
            addFields();
            super.write(character);
        }

        @Override
        public void write(char[] text, int from, int length) {
            addFields();
            super.write(text, from, length);
        }

        @Override
        public void write(String text, int from, int length) {
            addFields();
            super.write(text, from, length);
        }

        @Override
        public void flush() {
            addFields();
            super.flush();
        }

        @Override
        public void close() {
            addFields();
            super.close();
        }
    }
}
