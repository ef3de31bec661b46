// A door into another network: what comes to the unix socket of the first argument goes to the port of the second, here.
import { connect, createServer } from 'node:net';

const [path, port] = process.argv.slice(2);
createServer((socket) => {
  const inside = connect(Number(port), '127.0.0.1');
  for (const [one, other] of [
    [socket, inside],
    [inside, socket],
  ]) {
    one.pipe(other);
    one.on('error', () => other.destroy());
    one.on('close', () => other.destroy());
  }
}).listen({ path, backlog: 2048 });
