/** Models split over several GGUF files, named `<base>-00001-of-00003.gguf` by llama.cpp's gguf-split. */
import { existsSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type GgufFile, type GgufReadOptions, readGguf } from './gguf-reader.ts';

export interface SplitName {
  base: string;
  /** Counted from 1. */
  part: number;
  parts: number;
}

/** Undefined where a file name is not one of a split. */
export function parseSplitName(fileName: string): SplitName | undefined {
  const match = /^(.+)-(\d{5})-of-(\d{5})\.gguf$/.exec(fileName);
  if (!match) return undefined;
  return { base: match[1]!, part: Number(match[2]), parts: Number(match[3]) };
}

export function splitName({ base, part, parts }: SplitName): string {
  const digits = (value: number): string => String(value).padStart(5, '0');
  return `${base}-${digits(part)}-of-${digits(parts)}.gguf`;
}

/**
 * Reads a GGUF file, or all parts of a split of which `path` names any one; the part with the metadata comes
 * first. Throws as readGguf does, and E_MODEL_SPLIT where parts are absent or disagree.
 */
export function readGgufParts(path: string, options: GgufReadOptions = {}): readonly GgufFile[] {
  const name = parseSplitName(basename(path));
  if (name === undefined) {
    const file = readGguf(path, options);
    const count = file.metadata.get('split.count');
    if (count !== undefined && count.type !== 'array' && Number(count.value) > 1) {
      throw new HpcserveError('E_MODEL_SPLIT', {
        what: `${path} is one part of ${String(count.value)}`,
        because: 'its name is not of the form NAME-00001-of-00003.gguf, so the other parts cannot be found',
        try: 'give all parts their original names',
      });
    }
    return [file];
  }
  const paths = Array.from({ length: name.parts }, (_, index) =>
    join(dirname(path), splitName({ ...name, part: index + 1 })),
  );
  // An absent file that was asked for is a wrong path rather than an incomplete split.
  if (!existsSync(path)) return [readGguf(path, options)];
  const absent = paths.filter((part) => !existsSync(part));
  if (absent.length > 0) {
    throw new HpcserveError('E_MODEL_SPLIT', {
      what: `${absent.length} of the ${name.parts} parts of ${name.base} are missing`,
      because: absent.map((part) => `${part} does not exist`),
    });
  }
  const files = paths.map((part) => readGguf(part, options));
  for (const [index, file] of files.entries()) checkPart(file, index, files[0]!);
  return files;
}

function checkPart(file: GgufFile, index: number, first: GgufFile): void {
  const number = (key: string, of: GgufFile): number | undefined => {
    const entry = of.metadata.get(key);
    return entry === undefined || entry.type === 'array' ? undefined : Number(entry.value);
  };
  const stated = number('split.no', file);
  const count = number('split.count', file);
  if (stated !== index || count !== number('split.count', first)) {
    throw new HpcserveError('E_MODEL_SPLIT', {
      what: `${file.path} does not belong where its name puts it`,
      because: `it says that it is part ${(stated ?? Number.NaN) + 1} of ${count}`,
    });
  }
}
