import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;

/**
 * The real pulsar-admin, many commands in one virtual machine.
 *
 * <p>Reads commands, one a line, words parted by tabs; answers each with a line: 0 or 1, a blank, and what the
 * command printed in base64.
 */
public final class AdminShell {
    /** What is written goes to whichever command runs just now. */
    private static final class Switch extends OutputStream {
        ByteArrayOutputStream now = new ByteArrayOutputStream();

        @Override
        public synchronized void write(int one) {
            now.write(one);
        }

        @Override
        public synchronized void write(byte[] bytes, int start, int length) {
            now.write(bytes, start, length);
        }

        synchronized String take() {
            String told = Base64.getEncoder().encodeToString(now.toByteArray());
            now = new ByteArrayOutputStream();
            return told;
        }
    }

    /** Its `run` is for heirs only. */
    private static final class Tool extends PulsarAdminTool {
        Tool(Properties properties) throws Exception {
            super(properties);
        }

        boolean ask(String[] words) {
            return run(words);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("webServiceUrl", arguments[0]);
        properties.setProperty("brokerServiceUrl", arguments[1]);
        PrintStream answers = System.out;
        Switch printed = new Switch();
        PrintStream all = new PrintStream(printed, true, StandardCharsets.UTF_8) {
            @Override
            public void close() {
                flush(); // Some commands close what they print to.
            }
        };
        System.setOut(all);
        System.setErr(all);
        Tool tool = new Tool(properties);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            boolean done = tool.ask(line.split("\t", -1));
            all.flush();
            answers.println((done ? "0 " : "1 ") + printed.take());
            answers.flush();
        }
        System.exit(0);
    }
}
