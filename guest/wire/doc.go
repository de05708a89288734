// Package wire is the protocol between engi and the guest program: where the
// guest finds its channel, the messages, and the framing of streams. Both
// sides import it; nothing here does I/O of its own beyond reading and writing
// frames. What follows suffices for a second implementation of either side.
//
// # Channel
//
// The host mounts a directory read only at /.engi inside. It holds a listening
// unix socket (sock), the guest program (engi-guest) and its configuration
// (guest.json, a [Config]). The guest connects to the socket; the host
// accepts. The guest always keeps one connection spare: as soon as the first
// byte arrives on it, it opens another. When connecting fails or a spare one
// breaks it tries again after 10 ms, then after twice as long, up to 250 ms,
// for ever. So a host that starts anew finds a connection waiting, and one that
// goes away leaves nothing to repair.
//
// On every connection the guest is the server and the host the client of
// HTTP/2 without TLS and without upgrade (prior knowledge). Every request,
// whatever its path, carries the header X-Access-Token with the token of
// guest.json; without it the answer is status 401. The guest compares it in
// constant time.
//
// Everything the guest sends is hostile to the host, and what programs inside
// do is hostile to the guest: each side checks sizes, paths, numbers and names
// before it uses them. Bounds are constants of this package.
//
// # Errors
//
// A refused request has a status from the table in [Status], the header
// Engi-Error, and a JSON [Error] as body. A stream that fails after it began
// ends with a Failure frame with the same JSON, or is reset.
//
// # Frames
//
// Requests and answers that are streams consist of frames: one byte of kind
// (see [Kind]), four bytes of length, most significant first, and as many bytes
// of payload. Data, Stdout, Stderr and Terminal frames carry bytes, at most
// [MaxData] of them; End and Alive carry none; the others carry a JSON value of
// at most [MaxJSON] bytes. An unknown kind or a longer payload ends the stream.
// A receiver must not allocate what is announced before it has arrived.
//
// A stream ends after its last frame; one that ends elsewhere was broken off.
// The guest sends an Alive frame when it has sent nothing for 15 seconds.
//
// # Requests
//
// All paths are below /engi/. Bodies are JSON unless said otherwise, and at
// most [MaxJSON] bytes. Answers without a value have status 204.
//
//	GET  hello                Hello
//	POST setup                Setup; before programs are started, and whenever that changes
//	POST prepare              Prepare; answers once the interpreter waits
//	POST kernels              Kernels; answers once they wait for code
//	POST run                  frames; see Runs
//	GET  run/ID?from=N        frames; a run again, from an offset
//	GET  run/ID/artifacts     the contents of the manifest's files, nothing between them
//	POST process              Command; the answer is a stream of frames
//	GET  process              list of Process
//	GET  process/ID?from=N    frames; ID is an ID or a tag; -1 is the present end
//	POST process/ID/input     bytes, at most 1 MiB
//	POST process/ID/eof       ends standard input; in a terminal sends character 4
//	POST process/ID/signal?name=TERM
//	POST process/ID/resize    Size
//	GET  file?path=P          the content
//	PUT  file?path=P&mode=OCTAL&user=NAME
//	                          the content; header or trailer Engi-Sha256 has its digest in hex
//	GET  stat?path=P          FileInfo
//	GET  list?path=P&depth=N  list of FileInfo
//	POST mkdir?path=P
//	POST move?path=P&to=P
//	POST remove?path=P
//	GET  watch?path=P&recursive=true
//	                          frames: Alive when the watch is in force, then Change
//	GET  pack?path=P          tar
//	POST unpack?path=P        tar
//	POST port/N               bytes both ways, to TCP port N on loopback; the answer's
//	                          status comes when the connection stands
//	GET  usage                Usage
//	POST quiesce              answers, then closes every connection
//	POST poweroff             answers, then ends PID 1
//
// Paths below /interpreter/ are those of E2B's code interpreter; see Kernels.
// Every other path belongs to the dialect of E2B's in-sandbox agent: /health,
// /files, /envs, /metrics and the Connect services process.Process and
// filesystem.Filesystem.
//
// # Processes
//
// The output of a process is one sequence of bytes over all its streams. The
// guest keeps the last Output bytes of it. Answers about a process begin with a
// Started frame (a [Start], whose From is the offset of the first byte that
// follows), go on with output frames, which count on from there, and end with
// an Exited frame (a [Finish]). A reader that is slower than the process makes
// the process wait, like a pipe; without readers the oldest bytes are
// forgotten, and reading them is a Conflict. A process goes on when nobody
// reads. The end is announced when the process itself has ended and its
// streams are closed, or 100 ms after its end if others still hold them.
//
// # Runs
//
// The body of a run is a Head frame with a [Run], then Data frames with the
// bytes of all files in the order of the head, then those of standard input,
// cut anywhere, and an End frame. The sizes in the head say which byte belongs
// where. Files are written below the working directory, never through a link.
//
// The program runs in the interpreter that Prepare started if that can do
// exactly what a fresh one would do: same interpreter, the language's usual
// file name (see [Entry]), no variable the interpreter or its libraries read
// while they start. Otherwise a fresh one is started. Finish.Warm tells.
//
// A run ends when its main process does, or at its timeout, or when it printed
// more than Output bytes. What is left of its processes 100 ms later is killed.
// Then the guest makes the manifest: regular files below the output directory
// that are new or changed since the run began, in path order, without
// unchanged inputs and without directories named __pycache__, as long as they
// fit into the limits; the others are counted. Only names that [CheckRelative]
// accepts can be in it.
//
// The answer is like that of a process. The guest may hold output back for
// 5 ms so that more goes out at once. Finished runs are remembered, with their
// output, for as long as there are few of them: at least the last one.
//
// # Kernels
//
// The code interpreter has contexts: a language, a directory, and a kernel, a
// process that runs code and remembers what it defined. A context runs one
// execution at a time, in the order they came. Its kernel starts with its
// first execution, and afresh after it died; contexts stay.
//
//	GET    /interpreter/health                 OK
//	POST   /interpreter/execute                {code, context_id or language, env_vars}
//	GET    /interpreter/contexts               list of {id, language, cwd}
//	POST   /interpreter/contexts               {language, cwd}; answers with the context
//	DELETE /interpreter/contexts/ID
//	POST   /interpreter/contexts/ID/restart
//
// The answer of execute is one JSON object per line, all of it ASCII, told
// apart by type: number_of_executions, stdout and stderr, result, error,
// keepalive every 5 seconds, and last end_of_execution, or
// unexpected_end_of_execution if the kernel is lost. Output is held back for
// 200 ms for more of it. When the request is broken off the kernel is
// interrupted, and replaced if that takes longer than 1.5 seconds. Errors have a
// status and a text. Kernels have the environment of the last setup, also if
// that came after they started.
//
// # Quiesce and resume
//
// An open connection to the host makes a machine impossible to save. After
// quiesce the guest has none; the host knows when it sees the end of the
// connection it asked on. The guest then looks at the file named resume in
// /.engi every 10 ms. When it is there and says something else than at the
// quiesce, the guest reads guest.json again, sets clock, entropy and host name
// as far as the kernel lets it, and connects.
package wire
