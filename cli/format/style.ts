/** Colour and weight, where the terminal and NO_COLOR (no-color.org) allow it. */
import { styleText } from 'node:util';

export type StyleName = 'bold' | 'dim' | 'red' | 'green' | 'yellow' | 'cyan';

/** @param colour see `wantsColour`: whoever writes knows where it goes, so `styleText` is not to look at stdout. */
export function style(name: StyleName, text: string, colour: boolean): string {
  return colour ? styleText(name, text, { validateStream: false }) : text;
}

/** NO_COLOR set to anything but "" turns colour off; FORCE_COLOR turns it on; else the terminal decides. */
export function wantsColour(
  environment: Readonly<Record<string, string | undefined>>,
  isTerminal: boolean,
): boolean {
  if (environment.NO_COLOR !== undefined && environment.NO_COLOR !== '') return false;
  if (
    environment.FORCE_COLOR !== undefined &&
    environment.FORCE_COLOR !== '' &&
    environment.FORCE_COLOR !== '0'
  )
    return true;
  return isTerminal && environment.TERM !== 'dumb';
}

/**
 * Text that came from elsewhere (job names, node names, logs of others, error words), made safe for a
 * terminal: control characters except tab and line break become visible.
 */
export function printable(text: string): string {
  return text.replaceAll(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g,
    (character) => `\\x${character.charCodeAt(0).toString(16).padStart(2, '0')}`,
  );
}
