import type { IncomingMessage } from 'node:http';
import { gunzip } from 'node:zlib';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { BodyHold } from '../body-memory.ts';
import { readBody, tooManyBytes } from './body-reader.ts';

type Done = Parameters<typeof readBody>[3];

const empty = Buffer.alloc(0);
/** Its last four bytes are its length (RFC 1952 §2.3.1); it has at least 18. */
const trailer_bytes = 4;
const gzip_bytes_min = 18;
const magic = Buffer.from([0x1f, 0x8b]);

/** Content encodings that are read; undefined where one is not. */
export function encodingOf({ headers }: IncomingMessage): 'none' | 'gzip' | undefined {
  const encoding = headers['content-encoding']?.trim().toLowerCase() ?? 'identity';
  if (encoding === 'identity' || encoding === '') return 'none';
  return encoding === 'gzip' || encoding === 'x-gzip' ? 'gzip' : undefined;
}

/** As `readBody`; what is packed is unpacked, when there is memory for what it says it holds, and no further. */
export function readUnpackedBody(
  request: IncomingMessage,
  hold: BodyHold,
  bytes_max: number,
  done: Done,
): void {
  if (encodingOf(request) !== 'gzip') {
    readBody(request, hold, bytes_max, done);
    return;
  }
  readBody(request, hold, bytes_max, (refusal, packed) => {
    if (refusal || packed.length < gzip_bytes_min || !packed.subarray(0, magic.length).equals(magic)) {
      done(refusal ?? notPacked('it does not begin as one, or is too short'), empty);
      return;
    }
    const length = packed.readUInt32LE(packed.length - trailer_bytes);
    if (length > bytes_max) {
      done(tooManyBytes(length, bytes_max), empty);
      return;
    }
    hold.need(packed.length + length, (full) => {
      if (full) done(full, empty);
      else
        gunzip(packed, { maxOutputLength: Math.max(1, length) }, (error, body) =>
          done(error ? notPacked(error.message) : undefined, error ? empty : body),
        );
    });
  });
}

function notPacked(because: string): HpcserveError {
  return new HpcserveError('E_REQUEST_INVALID', {
    what: 'the body of the request is not the gzip that `content-encoding` says it is',
    because,
  });
}
