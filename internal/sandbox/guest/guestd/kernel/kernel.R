# The R kernel. It reads calls of run() from the named pipe in, one per line, and
# writes events to the named pipe out. User code prints to descriptors 1 and 2.
local({
  here <- commandArgs(TRUE)[1]
  most <- 12 * 2^20 # bytes of an event; the guest accepts no more
  input <- fifo(file.path(here, "in"), "r", blocking = TRUE)
  output <- fifo(file.path(here, "out"), "wb", blocking = TRUE)
  options(warn = 1, menu.graphics = FALSE)

  quoted <- function(s) {
    s <- iconv(enc2utf8(paste(s, collapse = "\n")), "UTF-8", "UTF-8", sub = "?")
    s <- gsub('"', '\\"', gsub("\\", "\\\\", s, fixed = TRUE), fixed = TRUE)
    for (i in 1:31) s <- gsub(intToUtf8(i), sprintf("\\u%04x", i), s, fixed = TRUE)
    paste0('"', s, '"')
  }
  send <- function(...) {
    line <- charToRaw(paste0("{", paste0('"', names(list(...)), '":', c(...), collapse = ","), "}\n"))
    if (length(line) > most) {
      cat(sprintf("a result of %d bytes is left out: it is over %d\n", length(line), most), file = stderr())
    } else {
      writeBin(line, output)
    }
  }
  result <- function(kind, data, main) {
    send(event = '"result"', main = if (main) "true" else "false", data = sprintf("{%s:%s}", quoted(kind), quoted(data)))
  }
  failure <- function(name, value, traceback) {
    send(event = '"error"', name = quoted(name), value = quoted(value), traceback = quoted(traceback))
  }
  base64 <- function(bytes) {
    rest <- -length(bytes) %% 3
    b <- matrix(c(as.integer(bytes), integer(rest)), nrow = 3)
    i <- rbind(b[1, ] %/% 4, b[1, ] %% 4 * 16 + b[2, ] %/% 16, b[2, ] %% 16 * 4 + b[3, ] %/% 64, b[3, ] %% 64)
    s <- c(LETTERS, letters, 0:9, "+", "/")[i + 1]
    paste(c(s[seq_len(length(s) - rest)], rep("=", rest)), collapse = "")
  }

  # Pictures are of a device of our own, unless the code has opened another.
  pictures <- file.path(tempdir(), "pictures")
  dir.create(pictures)
  devices <- c()
  options(device = function(...) {
    grDevices::png(file.path(pictures, "%06d.png"), 1000, 700, res = 144, type = "cairo")
    devices <<- c(devices, grDevices::dev.cur())
  })
  show_pictures <- function() {
    for (d in intersect(devices, grDevices::dev.list())) grDevices::dev.off(d)
    devices <<- c()
    for (f in list.files(pictures, full.names = TRUE)) {
      result("image/png", base64(readBin(f, "raw", file.size(f))), FALSE)
      unlink(f)
    }
  }

  # Code that quits ends its cell, then the kernel.
  leave <- function(save = "no", status = 0, runLast = TRUE) {
    stop(structure(list(message = "quit", call = NULL, status = status), class = c("engi_quit", "condition")))
  }
  attach(list(quit = leave, q = leave), name = "engi", warn.conflicts = FALSE)

  cell <- function(expression) withVisible(eval(expression, globalenv()))
  run <- function(id, code, set = c(), unset = c(), own = c()) {
    Sys.unsetenv(unset)
    if (length(set)) do.call(Sys.setenv, as.list(set))
    before <- character() # of those that this cell alone has
    if (length(own)) {
      before <- Sys.getenv(names(own), unset = NA, names = TRUE)
      do.call(Sys.setenv, as.list(own))
    }
    calls <- list()
    status <- NULL
    tryCatch(
      withCallingHandlers({
        all <- parse(text = code, keep.source = FALSE)
        for (i in seq_along(all)) {
          v <- cell(all[[i]])
          if (v$visible) result("text/plain", utils::capture.output(print(v$value)), i == length(all))
        }
      }, error = function(e) calls <<- sys.calls()),
      error = function(e) {
        first <- Position(function(f) identical(f[[1]], quote(cell)), calls)
        calls <- if (is.na(first)) list() else utils::head(utils::tail(calls, -(first + 3)), -2) # without this program's
        where <- if (length(calls)) paste0("\n", seq_along(calls), ": ", vapply(calls, function(f) deparse(f, nlines = 1)[1], ""), collapse = "")
        name <- setdiff(class(e), c("simpleError", "condition"))[1]
        failure(if (name == "error") "Error" else name, conditionMessage(e), paste0("Error: ", conditionMessage(e), where))
      },
      interrupt = function(e) failure("KeyboardInterrupt", "", "KeyboardInterrupt"),
      engi_quit = function(e) status <<- as.integer(e$status)
    )
    tryCatch(show_pictures(), error = function(e) message(conditionMessage(e)))
    Sys.unsetenv(names(before)[is.na(before)])
    back <- before[!is.na(before)]
    if (length(back)) do.call(Sys.setenv, as.list(back))
    if (!is.null(status) && status != 0) failure("ExitError", paste("exit status", status), paste("exit status", status))
    send(event = '"end"', id = format(id, scientific = FALSE), over = if (is.null(status)) "false" else "true")
    if (!is.null(status)) base::quit("no", status, FALSE)
  }

  send(event = '"ready"')
  repeat {
    line <- tryCatch(readLines(input, 1), interrupt = function(e) "")
    if (length(line) == 0) break
    eval(parse(text = line, keep.source = FALSE))
  }
})
