/** Line drawings of 16 by 16; they say nothing that the words beside them do not. */
const paths = {
  models: 'M2.5 5 8 2.2 13.5 5v6L8 13.8 2.5 11zM2.5 5 8 7.8 13.5 5M8 7.8v6',
  jobs: 'M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.01M5 11h.01M8 5h3M8 11h3',
  live: 'M1.5 8.5h3l2-5.5 3 10 2-6.5 1 2h2',
  usage: 'M3 13.5V8M8 13.5v-11M13 13.5V6',
  keys: 'M10 6.5a3.25 3.25 0 1 0-2.6 3.2L9 11h1.5v1.5H12V14h2v-2L9.6 7.7M5.6 5.6h.01',
  chat: 'M2.5 3.5h11v7.5H8L4.8 13.5V11H2.5z',
  sun: 'M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6M8 1.5v1.2M8 13.3v1.2M1.5 8h1.2M13.3 8h1.2M3.4 3.4l.9.9M11.7 11.7l.9.9M3.4 12.6l.9-.9M11.7 4.3l.9-.9',
  moon: 'M13 9.6A5.6 5.6 0 0 1 6.4 3 5.6 5.6 0 1 0 13 9.6',
  system: 'M2 3h12v8H2zM6 14h4M8 11v3',
  leave: 'M6 2.5H3v11h3M7 8h6.5M11 5.2 13.7 8 11 10.8',
  copy: 'M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8z',
  done: 'M3 8.5 6.5 12 13 4.5',
  close: 'M4 4l8 8M12 4l-8 8',
  send: 'M8 13.5v-11M3.5 7 8 2.5 12.5 7',
  stop: 'M4.5 4.5h7v7h-7z',
  again: 'M13 8a5 5 0 1 1-1.5-3.5M13 2v3h-3',
  plus: 'M8 3v10M3 8h10',
  down: 'M8 2.5v8M4.5 7.5 8 11l3.5-3.5M2.5 13.5h11',
  open: 'M6 4l4 4-4 4',
  shut: 'M4 6l4 4 4-4',
  help: 'M6 6.2a2 2 0 1 1 2.7 1.9c-.5.2-.7.5-.7 1.1M8 11.5h.01M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 0 0 8 1.8',
  tune: 'M2.5 4.5h6M11.5 4.5h2M2.5 11.5h2M7.5 11.5h6M10 3v3M6 10v3',
} as const;
export type IconName = keyof typeof paths;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" focusable="false">
      <path d={paths[name]} />
    </svg>
  );
}
