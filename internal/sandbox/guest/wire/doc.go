// Package wire is the protocol between engi and the guest program: where the
// guest finds its channel, the messages, and the framing of streams. Both sides
// import it. It does no I/O beyond reading and writing frames. The description below is
// enough to write a second implementation of either side.
//
// # Channel
//
// The host mounts a directory read-only at /.engi in the sandbox. It holds a
// listening unix socket (sock), the guest program (engi-guest) and its
// configuration (guest.json, a [Config]). The guest connects to the socket; the
// host accepts. The guest always keeps one spare connection: as soon as the
// first byte arrives on it, it opens another. When connecting fails or the spare
// breaks, it retries for ever, after 10 ms at first, doubling the delay up to 250 ms.
// So a restarted host finds a connection waiting, and a host that goes away
// leaves nothing to repair.
//
// On every connection the guest is the server and the host the client of
// HTTP/2 without TLS and with prior knowledge. Every request, whatever its path,
// carries the token of guest.json in the header X-Access-Token, which the guest
// compares in constant time. Without this token the answer is status 401.
//
// The host treats all messages of the guest as hostile, and the guest treats all actions of programs in the
// sandbox as hostile: each side checks sizes, paths, numbers and
// names before it uses them. Bounds are constants of this package.
//
// # Errors
//
// A refused request is answered with a status from the table in [Status], the
// header Engi-Error, and a JSON [Error] as body. A stream that fails after it
// has begun ends with a Failure frame that has the same JSON, or is reset.
//
// # Frames
//
// Requests and answers that are streams consist of frames: one byte of kind
// (see [Kind]), four bytes of length, most significant first, and that many
// bytes of payload. Data, Stdout, Stderr and Terminal frames carry at most
// [MaxData] bytes; End and Alive carry none; the others carry a JSON value of
// at most [MaxJSON] bytes. An unknown kind or a longer payload ends the stream.
// A receiver must not allocate an announced payload before it has arrived.
//
// A stream ends after its last frame. If it ends elsewhere, it was cut off. The
// guest sends an Alive frame when it has sent nothing for 15 seconds.
//
// # Requests
//
// All paths are below /engi/. Bodies are JSON unless noted otherwise, and at
// most [MaxJSON] bytes. Answers without a value have status 204.
//
//	GET  hello                Hello
//	POST setup                Setup; before programs are started, and when it changes
//	POST prepare              Prepare; answers once the interpreter is waiting
//	POST kernels              Kernels; answers once the kernels are waiting for code
//	POST run                  frames; see Runs
//	GET  run/ID?from=N        frames; follows a run from an offset on
//	GET  run/ID/artifacts     the contents of the manifest's files, concatenated
//	POST process              Command; the answer is a stream of frames
//	GET  process              list of Process
//	GET  process/ID?from=N    frames; ID is an ID or a tag; -1 is the current end
//	POST process/ID/input     bytes, at most 1 MiB
//	POST process/ID/input?writer=NAME&at=N
//	                          bytes from number N on of the writer's input; answers
//	                          with Taken. Bytes received before are dropped
//	GET  process/ID/history   History, of a process with a terminal
//	POST process/ID/eof       ends standard input; in a terminal sends character 4
//	POST process/ID/signal?name=TERM
//	POST process/ID/resize    Size
//	GET  file?path=P          the content
//	PUT  file?path=P&mode=OCTAL&user=NAME
//	                          the content; its hex digest in header or trailer Engi-Sha256
//	GET  stat?path=P          FileInfo
//	GET  list?path=P&depth=N  list of FileInfo
//	POST mkdir?path=P
//	POST move?path=P&to=P
//	POST remove?path=P
//	GET  watch?path=P&recursive=true
//	                          frames: Alive when the watch has begun, then Change
//	GET  pack?path=P          tar
//	POST unpack?path=P        tar
//	POST port/N               bytes both ways, to TCP port N on loopback; the status
//	                          is sent once connected
//	GET  usage                Usage
//	POST quiesce              answers, then closes every connection
//	POST poweroff             answers, then ends PID 1
//
// Paths below /interpreter/ belong to the API of E2B's code interpreter; see Kernels.
// Every other path belongs to the API of E2B's envd: /health, /files, /envs,
// /metrics and the Connect services process.Process and filesystem.Filesystem.
//
// # Processes
//
// The output of a process is one sequence of bytes over all its streams, of
// which the guest keeps the last Output bytes. An answer about a process begins
// with a Started frame (a [Start], whose From is the offset of the first byte
// that follows), continues with output frames, and ends with an Exited frame (a
// [Finish]). A reader that is slower than the process blocks it, like a pipe.
// Without readers the process continues and the oldest bytes are dropped;
// reading dropped bytes is a Conflict. The Exited frame is sent when the process itself
// has ended and its streams are closed, or 100 ms after its end if other
// processes still hold them.
//
// # Runs
//
// The body of a run is a Head frame with a [Run], then Data frames with the
// bytes of all files in the order of the head followed by those of standard
// input, split anywhere, and an End frame. The sizes in the head separate the
// contents. Files are written below the working directory, never through a
// link.
//
// The program runs in the interpreter that Prepare started if the result is
// exactly the same as in a fresh one: same interpreter, the language's usual file name
// (see [Entry]), no variable that the interpreter or its libraries read while
// they start. Otherwise a fresh interpreter is started. Finish.Warm reports the choice.
//
// A run ends when its main process ends, at its timeout, or when it has printed
// more than Output bytes. Processes that remain 100 ms later are killed. Then
// the guest makes the manifest: the regular files below the output directory
// that are new or have changed since the run began, in path order, leaving out
// unchanged inputs and directories named __pycache__. Files over the limits, or
// with names that [CheckRelative] does not accept, are only counted.
//
// The answer is like the answer of a process. The guest may hold back output for 5 ms
// to send more at once. It keeps the last finished run with its output, and
// earlier finished runs as long as there are few.
//
// # Kernels
//
// The code interpreter has contexts. A context is a language, a directory and a
// kernel: a process that runs code and keeps the definitions of the code. A
// context runs one execution at a time, in the order of arrival. Its kernel is
// started by the first execution, and again after it has died; the context
// stays.
//
//	GET    /interpreter/health                 OK
//	POST   /interpreter/execute                {code, context_id or language, env_vars}
//	GET    /interpreter/contexts               list of {id, language, cwd}
//	POST   /interpreter/contexts               {language, cwd}; answers with the context
//	DELETE /interpreter/contexts/ID
//	POST   /interpreter/contexts/ID/restart
//
// The answer to execute is one JSON object per line, in ASCII, of type
// number_of_executions, stdout, stderr, result, error, keepalive (every 5
// seconds), and finally end_of_execution, or unexpected_end_of_execution if the
// kernel is lost. Output is held back for 200 ms to send more at once. When the
// request is cancelled the kernel is interrupted, and replaced if the interruption takes
// longer than 1.5 seconds. Errors have a status and a text. Kernels have the
// environment of the last setup, even if it arrived after their start.
//
// # Quiesce and resume
//
// A machine with an open connection to the host cannot be saved. After quiesce
// the guest has none; the host knows this when it sees the end of the connection of its
// request. The guest then polls the file resume in /.engi every 10 ms. When its
// content differs from the content at the quiesce, the guest reads guest.json again,
// sets clock, entropy and host name as far as the kernel allows, and connects.
package wire
