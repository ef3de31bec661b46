import { InvalidArgumentError } from 'commander';

export function parseNumber(text: string): number {
  const value = Number(text);
  if (text.trim() === '' || !Number.isFinite(value)) throw new InvalidArgumentError('a number.');
  return value;
}
