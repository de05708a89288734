// The Java kernel, by JShell. It reads commands from the named pipe in, one per line
// with its parts in base64, and writes events to the named pipe out. User code runs
// in this process and prints to descriptors 1 and 2.
import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import jdk.jshell.Diag;
import jdk.jshell.EvalException;
import jdk.jshell.JShell;
import jdk.jshell.JShellException;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.UnresolvedReferenceException;
import jdk.jshell.execution.LocalExecutionControlProvider;
import sun.misc.Signal;

public class Kernel {
    static final int MOST = 12 << 20; // bytes of an event; the guest accepts no more
    static final List<String> IMPORTS = List.of("java.io.*", "java.math.*", "java.net.*", "java.nio.file.*", "java.util.*",
        "java.util.concurrent.*", "java.util.function.*", "java.util.prefs.*", "java.util.regex.*", "java.util.stream.*");

    static FileOutputStream events;
    static JShell shell;
    static volatile boolean interrupted;

    public static void main(String[] args) throws Exception {
        var commands = new BufferedReader(new InputStreamReader(new FileInputStream(args[0] + "/in"), StandardCharsets.US_ASCII));
        events = new FileOutputStream(args[0] + "/out");
        System.getenv().forEach((k, v) -> {
            if (System.getProperty(k) == null) System.setProperty(k, v);
        });
        shell = JShell.builder().executionEngine(new LocalExecutionControlProvider(), Map.of()).build();
        IMPORTS.forEach(name -> shell.eval("import " + name + ";"));
        shell.eval("1 + 1"); // warm up
        Signal.handle(new Signal("INT"), s -> {
            interrupted = true;
            shell.stop();
        });
        send("{\"event\":\"ready\"}");
        for (String line; (line = commands.readLine()) != null;) execute(line.split(" "));
        System.exit(0); // whatever threads are left
    }

    static String text(String base64) {
        return new String(Base64.getDecoder().decode(base64), StandardCharsets.UTF_8);
    }

    // execute runs a command: its number, the code, and variables that are set (+) or
    // unset (-) for good, or set (=) for this execution. Variables are properties,
    // since a process of Java cannot change its environment.
    static void execute(String[] parts) throws IOException {
        var before = new HashMap<String, String>();
        for (int i = 2; i < parts.length; i++) {
            String[] pair = parts[i].substring(1).split(":", -1);
            String name = text(pair[0]);
            if (parts[i].charAt(0) == '=') before.put(name, System.getProperty(name));
            if (parts[i].charAt(0) == '-') System.clearProperty(name);
            else System.setProperty(name, text(pair[1]));
        }
        interrupted = false;
        cell(parts.length > 1 ? text(parts[1]) : "");
        if (interrupted) error("KeyboardInterrupt", "", "KeyboardInterrupt");
        before.forEach((k, v) -> {
            if (v == null) System.clearProperty(k);
            else System.setProperty(k, v);
        });
        System.out.flush();
        System.err.flush();
        send("{\"event\":\"end\",\"id\":" + parts[0] + "}");
    }

    // cell evaluates code up to the first error. The value of the last expression is its result.
    static void cell(String code) throws IOException {
        String value = null;
        for (String rest = code; !rest.isBlank() && !interrupted;) {
            var found = shell.sourceCodeAnalysis().analyzeCompletion(rest);
            boolean whole = found.completeness().isComplete();
            String source = whole ? found.source() : rest; // what is not whole has the best diagnostics
            rest = whole ? found.remaining() : "";
            value = null;
            for (SnippetEvent e : shell.eval(source)) {
                if (e.causeSnippet() != null) continue; // it depends on the one that was evaluated
                if (e.status() == Snippet.Status.REJECTED) {
                    rejected(e.snippet());
                    return;
                }
                if (e.exception() != null) {
                    thrown(e.exception());
                    return;
                }
                switch (e.snippet().subKind()) {
                    case TEMP_VAR_EXPRESSION_SUBKIND, VAR_VALUE_SUBKIND, OTHER_EXPRESSION_SUBKIND -> value = e.value();
                    default -> {}
                }
            }
        }
        if (value == null || value.isEmpty() || interrupted) return;
        if (value.length() > 1 && value.startsWith("\"") && value.endsWith("\"")) value = unquoted(value);
        System.out.flush();
        System.err.flush();
        send("{\"event\":\"result\",\"main\":true,\"data\":{\"text/plain\":" + quoted(value) + "}}");
    }

    // unquoted returns a string that JShell shows as a literal.
    static String unquoted(String literal) {
        String inner = literal.substring(1, literal.length() - 1);
        try {
            return inner.translateEscapes();
        } catch (IllegalArgumentException e) {
            return inner;
        }
    }

    static void rejected(Snippet snippet) throws IOException {
        var lines = new ArrayList<String>();
        String first = "";
        for (Diag d : shell.diagnostics(snippet).toList()) {
            if (!d.isError()) continue;
            String message = d.getMessage(null);
            if (first.isEmpty()) first = message;
            int at = (int) Math.max(0, Math.min(d.getStartPosition(), snippet.source().length()));
            int line = snippet.source().substring(0, at).split("\n", -1).length;
            lines.add("line " + line + ": " + message + "\n    " + snippet.source().split("\n", -1)[line - 1].strip());
        }
        error("CompileError", first, String.join("\n", lines));
    }

    static void thrown(JShellException e) throws IOException {
        if (e instanceof UnresolvedReferenceException u) {
            String missing = shell.unresolvedDependencies(u.getSnippet()).collect(Collectors.joining(", "));
            error("UnresolvedReferenceException", "it refers to " + missing, u.getSnippet().name() + " refers to " + missing + ", which is not defined");
            return;
        }
        String name = ((EvalException) e).getExceptionClassName(), message = e.getMessage() == null ? "" : e.getMessage();
        var trace = new StringBuilder(message.isEmpty() ? name : name + ": " + message);
        for (StackTraceElement f : e.getStackTrace()) {
            if (f.getMethodName().equals("do_it$")) break; // below is this program
            trace.append("\n    at ").append(f.getMethodName()).append(" (").append(f.getFileName()).append(":").append(f.getLineNumber()).append(")");
        }
        error(name, message, trace.toString());
    }

    static void error(String name, String value, String traceback) throws IOException {
        System.out.flush();
        System.err.flush();
        send("{\"event\":\"error\",\"name\":" + quoted(name) + ",\"value\":" + quoted(value) + ",\"traceback\":" + quoted(traceback) + "}");
    }

    static void send(String event) throws IOException {
        byte[] line = (event + "\n").getBytes(StandardCharsets.UTF_8);
        if (line.length > MOST) System.err.printf("a result of %d bytes is left out: it is over %d%n", line.length, MOST);
        else events.write(line);
    }

    static String quoted(String s) {
        var b = new StringBuilder("\"");
        for (char c : s.toCharArray()) {
            if (c == '"' || c == '\\') b.append('\\').append(c);
            else if (c < ' ') b.append(String.format("\\u%04x", (int) c));
            else b.append(c);
        }
        return b.append('"').toString();
    }
}
