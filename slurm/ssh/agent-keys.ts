/**
 * An ssh agent, asked for what ssh2 leaves out: identities that are certificates, and signatures by them (RFC
 * draft-ietf-sshm-ssh-agent).
 */
import { connect } from 'node:net';
import { WireReader, wireStrings } from './certificate.ts';

const message = { list: 11, identities: 12, sign: 13, signature: 14 };
/** Longest time for an answer: a person may be asked to confirm, or to touch a key. */
const answer_ms = 60_000;
const answer_bytes_max = 256 * 1024;
/** RSA keys sign with SHA-512. */
const rsa_sha2_512 = 4;

/** @returns keys and certificates as they travel; none where no agent answers */
export async function agentIdentities(socket: string): Promise<Buffer[]> {
  const answer = await ask(socket, Buffer.of(message.list)).catch(() => undefined);
  if (answer?.[0] !== message.identities) return [];
  const reader = new WireReader(answer.subarray(1));
  return Array.from({ length: reader.uint32() }, () => {
    const blob = reader.bytes();
    reader.bytes();
    return blob;
  });
}

/**
 * @param identity a key or a certificate of the agent, as it travels
 * @returns the signature as it travels, with its algorithm's name
 * @throws where the agent refuses, or nobody confirms
 */
export async function signByAgent(socket: string, identity: Buffer, data: Buffer): Promise<Buffer> {
  const flags = Buffer.alloc(4);
  flags.writeUInt32BE(rsa_sha2_512);
  const answer = await ask(
    socket,
    Buffer.concat([Buffer.of(message.sign), wireStrings(identity, data), flags]),
  );
  if (answer[0] !== message.signature) throw new Error('the ssh agent did not sign');
  return new WireReader(answer.subarray(1)).bytes();
}

function ask(path: string, request: Buffer): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const socket = connect(path);
    const chunks: Buffer[] = [];
    const end = (error?: Error): void => {
      socket.destroy();
      reject(error ?? new Error('the ssh agent closed the connection'));
    };
    socket.setTimeout(answer_ms, () => end(new Error('the ssh agent did not answer')));
    socket.once('error', end).once('close', () => end());
    socket.on('data', (chunk) => {
      chunks.push(chunk);
      const answer = Buffer.concat(chunks);
      if (answer.length < 4) return;
      const length = answer.readUInt32BE();
      if (length > answer_bytes_max) return end(new Error('the ssh agent answered nonsense'));
      if (answer.length < 4 + length) return;
      socket.destroy();
      resolve(answer.subarray(4, 4 + length));
    });
    // Not `end`: an agent that reads the end of the stream may not answer any more.
    socket.write(wireStrings(request));
  });
}
