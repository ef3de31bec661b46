import { InvalidArgumentError } from 'commander';

/** `8000`: one that can be asked for by its number. */
export function parsePort(text: string): number {
  const port = Number(text);
  if (!Number.isInteger(port) || port < 1 || port > 65_535) throw new InvalidArgumentError('a port.');
  return port;
}
