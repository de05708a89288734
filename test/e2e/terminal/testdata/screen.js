// Prints what a terminal shows that got the bytes of a file: the referee.
const { Terminal } = require('@xterm/headless');
const [file, cols, rows] = process.argv.slice(2);
const t = new Terminal({ cols: +cols, rows: +rows, allowProposedApi: true });
t.write(require('fs').readFileSync(file), () => {
  const b = t.buffer.active;
  for (let y = 0; y < +rows; y++) console.log(b.getLine(b.baseY + y).translateToString(true).trimEnd());
});
